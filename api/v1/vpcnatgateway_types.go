// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// VpcNatGatewaySpec defines pods that translate addresses for a VPC.
type VpcNatGatewaySpec struct {
	// vpc that the gateway serves.
	// +optional
	Vpc string `json:"vpc,omitempty"`
	// subnet of the gateway in the VPC.
	// +optional
	Subnet string `json:"subnet,omitempty"`
	// lanIp is the address of the gateway in the subnet.
	// +optional
	LanIP string `json:"lanIp,omitempty"`
	// externalSubnets of the gateway's external addresses.
	// +optional
	ExternalSubnets []string `json:"externalSubnets,omitempty"`
	// internalSubnets are the subnets whose traffic the gateway forwards.
	// +optional
	InternalSubnets []string `json:"internalSubnets,omitempty"`
	// internalCIDRs are more networks whose traffic the gateway forwards.
	// +optional
	InternalCIDRs []string `json:"internalCIDRs,omitempty"`
	// routes of the gateway's pods.
	// +optional
	Routes []VpcNatGatewayRoute `json:"routes,omitempty"`
	// replicas is the number of pods.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	Replicas int32 `json:"replicas,omitempty"`
	// namespace of the pods.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// annotations of the pods.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// selector selects nodes by labels, written `key:value`.
	// +optional
	Selector []string `json:"selector,omitempty"`
	// tolerations of the pods.
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// affinity of the pods.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// qosPolicy is the name of the QoSPolicy of the gateway.
	// +optional
	QoSPolicy string `json:"qosPolicy,omitempty"`
	// noDefaultEIP: the pods get no external address of their own.
	// +optional
	NoDefaultEIP bool `json:"noDefaultEIP,omitempty"`
	// bfd of the gateway's pods.
	// +optional
	BFD *VpcNatGatewayBFD `json:"bfd,omitempty"`
	// bgpSpeaker announces the external addresses.
	// +optional
	BGPSpeaker *VpcNatGatewaySpeaker `json:"bgpSpeaker,omitempty"`
}

// VpcNatGatewayBFD configures BFD sessions (RFC 5880).
type VpcNatGatewayBFD struct {
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
	// +kubebuilder:validation:Maximum=255
	Multiplier int32 `json:"multiplier,omitempty"`
}

// VpcNatGatewayRoute is a route of the gateway's pods.
type VpcNatGatewayRoute struct {
	// +optional
	CIDR string `json:"cidr,omitempty"`
	// +optional
	NextHopIP string `json:"nextHopIP,omitempty"`
}

// VpcNatGatewaySpeaker configures BGP.
type VpcNatGatewaySpeaker struct {
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// asn is the number of the own autonomous system.
	// +optional
	ASN int32 `json:"asn,omitempty"`
	// remoteAsn is the number of the neighbours' autonomous system.
	// +optional
	RemoteASN int32 `json:"remoteAsn,omitempty"`
	// neighbors are the addresses of the BGP neighbours.
	// +optional
	Neighbors []string `json:"neighbors,omitempty"`
	// holdTime is a duration such as `90s` (RFC 4271).
	// +optional
	HoldTime string `json:"holdTime,omitempty"`
	// routerId is the BGP identifier, written as an IPv4 address.
	// +optional
	RouterID string `json:"routerId,omitempty"`
	// password of the TCP MD5 signature (RFC 2385). All users with access to the object can read it.
	// +optional
	Password string `json:"password,omitempty"`
	// +optional
	EnableGracefulRestart bool `json:"enableGracefulRestart,omitempty"`
	// extraArgs are more arguments of Kube-OVN's speaker.
	// +optional
	ExtraArgs []string `json:"extraArgs,omitempty"`
}

// VpcNatGatewayStatus is the observed state of a VpcNatGateway.
type VpcNatGatewayStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	Ready bool `json:"ready,omitempty"`
	// +optional
	LanIP string `json:"lanIp,omitempty"`
	// +optional
	ExternalSubnets []string `json:"externalSubnets,omitempty"`
	// +optional
	InternalSubnets []string `json:"internalSubnets,omitempty"`
	// +optional
	InternalCIDRs []string `json:"internalCIDRs,omitempty"`
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// +optional
	Selector []string `json:"selector,omitempty"`
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// +optional
	QoSPolicy string `json:"qosPolicy,omitempty"`
	// +optional
	Workload *GatewayWorkload `json:"workload,omitempty"`
}

// GatewayWorkload is the workload of a gateway's pods.
type GatewayWorkload struct {
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`
	// +optional
	Kind string `json:"kind,omitempty"`
	// +optional
	Name string `json:"name,omitempty"`
	// nodes that run the pods.
	// +optional
	Nodes []string `json:"nodes,omitempty"`
}

// VpcNatGateway runs pods that translate addresses between a VPC and external networks. This version of Kiln has no controller for it: its condition Ready is False.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=vpc-nat-gateways,singular=vpc-nat-gateway,shortName=vpc-nat-gw,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.namespace`
// +kubebuilder:printcolumn:name="Vpc",type=string,JSONPath=`.spec.vpc`
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
// +kubebuilder:printcolumn:name="IPs",type=string,JSONPath=`.status.lanIp`
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="BFD",type=boolean,JSONPath=`.spec.bfd.enabled`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type VpcNatGateway struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec VpcNatGatewaySpec `json:"spec,omitempty"`
	// +optional
	Status VpcNatGatewayStatus `json:"status,omitempty"`
}

// VpcNatGatewayList is a list of VpcNatGateways.
// +kubebuilder:object:root=true
type VpcNatGatewayList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []VpcNatGateway `json:"items"`
}
