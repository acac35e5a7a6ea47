// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EgressAddressSpec selects pods, and the addresses from which their packets leave.
// +kubebuilder:validation:XValidation:rule="has(self.ovnEip) != has(self.addresses)",message="write ovnEip, or addresses with nodeSelector"
// +kubebuilder:validation:XValidation:rule="has(self.addresses) == has(self.nodeSelector)",message="write addresses and nodeSelector together: the selected nodes have the addresses"
// +kubebuilder:validation:XValidation:rule="!has(self.addresses) || self.vpc == 'ovn-cluster'",message="vpc: packets of other VPCs than ovn-cluster leave by OvnEips: write ovnEip instead of addresses"
type EgressAddressSpec struct {
	// vpc is the VPC of the pods.
	// +optional
	// +kubebuilder:default=ovn-cluster
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Vpc string `json:"vpc,omitempty"`
	// namespaceSelector selects namespaces by their labels. It grants the addresses to them: users of a namespace write the labels of their pods, but not the labels
	// of the namespace. {} selects all namespaces.
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`
	// podSelector selects pods of these namespaces by their labels. By default, and when it is empty, all pods are selected.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
	// ovnEip names the OvnEip with the addresses. The router of the VPC translates, at its port in the OvnEip's external subnet.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	OvnEip string `json:"ovnEip,omitempty"`
	// addresses are the source addresses, one or one of each family. Packets of a family without an address are not affected. One of the nodes in
	// nodeSelector has the addresses at a time. No other host and no subnet may use them.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=45
	// +kubebuilder:validation:XValidation:rule="self.all(a, isIP(a) && ip(a).isGlobalUnicast())",message="must be IPv4 or IPv6 addresses that routers forward: not loopback, link-local, multicast or unspecified ones"
	// +kubebuilder:validation:XValidation:rule="self.size() < 2 || !self.all(a, isIP(a)) || ip(self[0]).family() != ip(self[1]).family()",message="write at most one address of each family"
	Addresses []string `json:"addresses,omitempty"`
	// nodeSelector selects the nodes that can have the addresses, by their labels. {} selects all nodes.
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
}

// EgressAddressStatus is the observed state of an EgressAddress.
type EgressAddressStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// pods is the number of pods to which the EgressAddress applies.
	// +optional
	// +kubebuilder:default=0
	Pods int32 `json:"pods"`
	// addresses are the source addresses: the addresses in spec, or of the OvnEip.
	// +optional
	// +listType=atomic
	Addresses []string `json:"addresses,omitempty"`
	// node has the addresses of spec, and standby gets them if it fails.
	// +optional
	Node string `json:"node,omitempty"`
	// +optional
	Standby string `json:"standby,omitempty"`
	// nodeSince is when node got the addresses. It is later than that of each former node, also if clocks differ, so that routers prefer the routes of the newest node.
	// +optional
	NodeSince *metav1.Time `json:"nodeSince,omitempty"`
	// validatedSpec is the last spec that was found valid. It is applied while the current spec is invalid or not validated yet.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	ValidatedSpec *EgressAddressSpec `json:"validatedSpec,omitempty"`
}

// EgressAddress gives packets that selected pods send to outside a fixed source address. Kube-OVN has no such kind.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=egress-addresses,singular=egress-address,shortName=eaddr,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Vpc",type=string,JSONPath=`.spec.vpc`
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.status.addresses`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.node`
// +kubebuilder:printcolumn:name="OvnEip",type=string,JSONPath=`.spec.ovnEip`
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.pods`
// +kubebuilder:printcolumn:name="Standby",type=string,priority=1,JSONPath=`.status.standby`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type EgressAddress struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec EgressAddressSpec `json:"spec"`
	// +optional
	Status EgressAddressStatus `json:"status,omitempty"`
}

// EgressAddressList is a list of EgressAddresses.
// +kubebuilder:object:root=true
type EgressAddressList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EgressAddress `json:"items"`
}
