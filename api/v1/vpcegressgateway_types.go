// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VpcEgressGatewaySpec defines pods that forward the egress traffic of a VPC.
// +kubebuilder:validation:XValidation:rule="!has(self.internalIPs) || size(self.internalIPs) == 0 || size(self.internalIPs) >= self.replicas",message="internalIPs must be at least as many as replicas: add addresses, or lower replicas"
// +kubebuilder:validation:XValidation:rule="!has(self.externalIPs) || size(self.externalIPs) == 0 || size(self.externalIPs) >= self.replicas",message="externalIPs must be at least as many as replicas: add addresses, or lower replicas"
// +kubebuilder:validation:XValidation:rule="!(has(self.internalIPs) && size(self.internalIPs) != 0 && has(self.internalIPPool) && size(self.internalIPPool) > 0)",message="set internalIPs or internalIPPool, not both"
// +kubebuilder:validation:XValidation:rule="!(has(self.externalIPs) && size(self.externalIPs) != 0 && has(self.externalIPPool) && size(self.externalIPPool) > 0)",message="set externalIPs or externalIPPool, not both"
// +kubebuilder:validation:XValidation:rule="(has(self.policies) && size(self.policies) != 0) || (has(self.selectors) && size(self.selectors) != 0)",message="set policies or selectors: they say whose traffic the gateway forwards"
type VpcEgressGatewaySpec struct {
	// vpc that the gateway serves. The default VPC when empty.
	// +optional
	Vpc string `json:"vpc,omitempty"`
	// replicas is the number of pods.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	Replicas int32 `json:"replicas,omitempty"`
	// prefix of the names of the workload and its pods. It cannot change.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^$|^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*[-\.]?$')`,message="must be lower-case letters, digits, hyphens and dots, such as egress-"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="prefix cannot change: create another VpcEgressGateway",messageExpression=`'prefix cannot change from ' + oldSelf + ' to ' + self + ': create another VpcEgressGateway'`
	Prefix string `json:"prefix,omitempty"`
	// image of the pods.
	// +optional
	Image string `json:"image,omitempty"`
	// internalSubnet is the subnet of the pods in the VPC.
	// +optional
	InternalSubnet string `json:"internalSubnet,omitempty"`
	// externalSubnet is the subnet of the pods in the external network.
	ExternalSubnet string `json:"externalSubnet"`
	// internalIPs are addresses for the pods in the internal subnet, at least as many as replicas.
	// +optional
	InternalIPs []string `json:"internalIPs,omitempty"`
	// externalIPs are addresses for the pods in the external subnet, at least as many as replicas.
	// +optional
	ExternalIPs []string `json:"externalIPs,omitempty"`
	// internalIPPool is the IPPool of the internal addresses, instead of internalIPs.
	// +optional
	InternalIPPool string `json:"internalIPPool,omitempty"`
	// externalIPPool is the IPPool of the external addresses, instead of externalIPs.
	// +optional
	ExternalIPPool string `json:"externalIPPool,omitempty"`
	// bfd of the gateway's pods.
	// +optional
	BFD *VpcEgressGatewayBFD `json:"bfd,omitempty"`
	// bgpConf is the name of the BgpConf that announces the pods.
	// +optional
	BgpConf string `json:"bgpConf,omitempty"`
	// evpnConf is the name of the EvpnConf of the pods.
	// +optional
	EvpnConf string `json:"evpnConf,omitempty"`
	// policies select the traffic by source subnets and networks.
	// +optional
	Policies []VpcEgressGatewayPolicy `json:"policies,omitempty"`
	// selectors select the traffic by source pods.
	// +optional
	Selectors []VpcEgressGatewaySelector `json:"selectors,omitempty"`
	// trafficPolicy is Cluster (all pods of the gateway) or Local (the pod on the node of the source, if there is one).
	// +optional
	// +kubebuilder:default=Cluster
	TrafficPolicy VpcEgressGatewayTrafficPolicy `json:"trafficPolicy,omitempty"`
	// nodeSelector selects the nodes of the pods.
	// +optional
	NodeSelector []VpcEgressGatewayNodeSelector `json:"nodeSelector,omitempty"`
	// tolerations of the pods.
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// podAntiAffinity is Required or Preferred: whether two pods of the gateway may run on one node.
	// +optional
	// +kubebuilder:default=Required
	PodAntiAffinity VpcEgressGatewayAntiAffinity `json:"podAntiAffinity,omitempty"`
	// resources of the pods.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	// bandwidth limits each pod.
	// +optional
	Bandwidth *VpcEgressGatewayBandwidth `json:"bandwidth,omitempty"`
	// observability configures metrics and logs of the pods.
	// +optional
	Observability *VpcEgressGatewayObservability `json:"observability,omitempty"`
}

// VpcEgressGatewayTrafficPolicy says which pods of the gateway forward a packet.
// +kubebuilder:validation:Enum=Local;Cluster
type VpcEgressGatewayTrafficPolicy string

// VpcEgressGatewayAntiAffinity says whether two pods of a gateway may run on one node.
// +kubebuilder:validation:Enum=Required;Preferred
type VpcEgressGatewayAntiAffinity string

// VpcEgressGatewayBFD configures BFD sessions (RFC 5880).
type VpcEgressGatewayBFD struct {
	// +optional
	// +kubebuilder:default=false
	Enabled bool `json:"enabled,omitempty"`
	// minRX is the shortest interval between received packets, in milliseconds.
	// +optional
	// +kubebuilder:default=1000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600000
	MinRX int32 `json:"minRX,omitempty"`
	// minTX is the shortest interval between sent packets, in milliseconds.
	// +optional
	// +kubebuilder:default=1000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600000
	MinTX int32 `json:"minTX,omitempty"`
	// multiplier is the number of lost packets after which a session is down.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600000
	Multiplier int32 `json:"multiplier,omitempty"`
}

// VpcEgressGatewayBandwidth limits the rates of a pod, in Mbit/s or with a unit: 100M, 1Gi.
type VpcEgressGatewayBandwidth struct {
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 9223372036854 : true",message="must be a rate that is not negative, and at most 9223372036854"
	Ingress *resource.Quantity `json:"ingress,omitempty"`
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 && self <= 9223372036854 : true",message="must be a rate that is not negative, and at most 9223372036854"
	Egress *resource.Quantity `json:"egress,omitempty"`
}

// VpcEgressGatewayPolicy selects traffic by its source.
type VpcEgressGatewayPolicy struct {
	// snat translates the source address to the address of the pod.
	// +optional
	// +kubebuilder:default=false
	SNAT bool `json:"snat,omitempty"`
	// ipBlocks are CIDRs or addresses.
	// +optional
	IPBlocks []string `json:"ipBlocks,omitempty"`
	// subnets are names of Subnets.
	// +optional
	Subnets []string `json:"subnets,omitempty"`
}

// NonEmptySelector is a selector of labels that selects at least by one label or expression.
// +kubebuilder:validation:XValidation:rule="has(self.matchLabels) || has(self.matchExpressions)",message="set matchLabels or matchExpressions"
type NonEmptySelector metav1.LabelSelector

// VpcEgressGatewaySelector selects traffic by its source pods.
type VpcEgressGatewaySelector struct {
	// +optional
	NamespaceSelector *NonEmptySelector `json:"namespaceSelector,omitempty"`
	// +optional
	PodSelector *NonEmptySelector `json:"podSelector,omitempty"`
}

// VpcEgressGatewayNodeSelector selects nodes.
type VpcEgressGatewayNodeSelector struct {
	// +optional
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
	// +optional
	MatchExpressions []corev1.NodeSelectorRequirement `json:"matchExpressions,omitempty"`
	// +optional
	MatchFields []corev1.NodeSelectorRequirement `json:"matchFields,omitempty"`
}

// VpcEgressGatewayStatus is the observed state of a VpcEgressGateway.
type VpcEgressGatewayStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	// +kubebuilder:default=Pending
	Phase VpcEgressGatewayPhase `json:"phase,omitempty"`
	// +optional
	// +kubebuilder:default=false
	Ready bool `json:"ready,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	Replicas int32 `json:"replicas,omitempty"`
	// labelSelector of the pods, for the subresource scale.
	// +optional
	LabelSelector string `json:"labelSelector,omitempty"`
	// +optional
	InternalIPs []string `json:"internalIPs,omitempty"`
	// +optional
	ExternalIPs []string `json:"externalIPs,omitempty"`
	// +optional
	Workload *GatewayWorkload `json:"workload,omitempty"`
}

// VpcEgressGatewayPhase is a summary of the state of a VpcEgressGateway.
// +kubebuilder:validation:Enum=Pending;Processing;Completed
type VpcEgressGatewayPhase string

// VpcEgressGateway runs pods that forward the egress traffic of a VPC to an external network. This version of Kiln has no controller for it: its condition Ready is False.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,path=vpc-egress-gateways,singular=vpc-egress-gateway,shortName=vpc-egress-gw;veg,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.labelSelector
// +kubebuilder:printcolumn:name="Vpc",type=string,JSONPath=`.spec.vpc`
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="bfd",type=boolean,JSONPath=`.spec.bfd.enabled`
// +kubebuilder:printcolumn:name="External Subnet",type=string,JSONPath=`.spec.externalSubnet`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Internal IPs",type=string,JSONPath=`.status.internalIPs`
// +kubebuilder:printcolumn:name="External IPs",type=string,JSONPath=`.status.externalIPs`
// +kubebuilder:printcolumn:name="Working Nodes",type=string,JSONPath=`.status.workload.nodes`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type VpcEgressGateway struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec VpcEgressGatewaySpec `json:"spec,omitempty"`
	// +optional
	Status VpcEgressGatewayStatus `json:"status,omitempty"`
}

// VpcEgressGatewayList is a list of VpcEgressGateways.
// +kubebuilder:object:root=true
type VpcEgressGatewayList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VpcEgressGateway `json:"items"`
}
