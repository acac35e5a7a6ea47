// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IptablesEIPSpec defines an external address of a VpcNatGateway.
type IptablesEIPSpec struct {
	// v4ip is the IPv4 address. An address is allocated when v4ip and v6ip are empty.
	// +optional
	V4IP string `json:"v4ip,omitempty"`
	// v6ip is the IPv6 address.
	// +optional
	V6IP string `json:"v6ip,omitempty"`
	// macAddress of the address on the external network.
	// +optional
	MACAddress string `json:"macAddress,omitempty"`
	// natGwDp is the name of the VpcNatGateway that has the address.
	// +optional
	NatGwDp string `json:"natGwDp,omitempty"`
	// qosPolicy is the name of the QoSPolicy of the address.
	// +optional
	QoSPolicy string `json:"qosPolicy,omitempty"`
	// externalSubnet of the address.
	// +optional
	ExternalSubnet string `json:"externalSubnet,omitempty"`
	// namespace of the gateway's pods.
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// IptablesEIPStatus is the observed state of an IptablesEIP.
type IptablesEIPStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	Ready bool `json:"ready,omitempty"`
	// +optional
	IP string `json:"ip,omitempty"`
	// nat lists the kinds of rules that use the address, separated by commas.
	// +optional
	NAT string `json:"nat,omitempty"`
	// +optional
	QoSPolicy string `json:"qosPolicy,omitempty"`
	// redo is a field of Kube-OVN. It is accepted, and ignored.
	// +optional
	Redo string `json:"redo,omitempty"`
}

// IptablesEIP is an external address of a VpcNatGateway. This version of Kiln has no controller for it: its condition Ready is False.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=iptables-eips,singular=iptables-eip,shortName=eip,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.namespace`
// +kubebuilder:printcolumn:name="ExternalSubnet",type=string,JSONPath=`.spec.externalSubnet`
// +kubebuilder:printcolumn:name="IP",type=string,JSONPath=`.status.ip`
// +kubebuilder:printcolumn:name="Mac",type=string,JSONPath=`.spec.macAddress`
// +kubebuilder:printcolumn:name="Nat",type=string,JSONPath=`.status.nat`
// +kubebuilder:printcolumn:name="NatGwDp",type=string,JSONPath=`.spec.natGwDp`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type IptablesEIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec IptablesEIPSpec `json:"spec,omitempty"`
	// +optional
	Status IptablesEIPStatus `json:"status,omitempty"`
}

// IptablesEIPList is a list of IptablesEIPs.
// +kubebuilder:object:root=true
type IptablesEIPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IptablesEIP `json:"items"`
}

// IptablesFIPRuleSpec defines a one-to-one translation of addresses.
type IptablesFIPRuleSpec struct {
	// eip is the name of the IptablesEIP.
	// +optional
	EIP string `json:"eip,omitempty"`
	// internalIp is the address of the pod.
	// +optional
	InternalIP string `json:"internalIp,omitempty"`
}

// IptablesFIPRuleStatus is the observed state of an IptablesFIPRule.
type IptablesFIPRuleStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	Ready bool `json:"ready,omitempty"`
	// +optional
	V4IP string `json:"v4ip,omitempty"`
	// +optional
	V6IP string `json:"v6ip,omitempty"`
	// natGwDp is the name of the VpcNatGateway.
	// +optional
	NatGwDp string `json:"natGwDp,omitempty"`
	// +optional
	InternalIP string `json:"internalIp,omitempty"`
	// redo is a field of Kube-OVN. It is accepted, and ignored.
	// +optional
	Redo string `json:"redo,omitempty"`
}

// IptablesFIPRule translates an external address to the address of one pod and back. This version of Kiln has no controller for it: its condition Ready is False.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=iptables-fip-rules,singular=iptables-fip-rule,shortName=fip,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Eip",type=string,JSONPath=`.spec.eip`
// +kubebuilder:printcolumn:name="V4ip",type=string,JSONPath=`.status.v4ip`
// +kubebuilder:printcolumn:name="InternalIp",type=string,JSONPath=`.spec.internalIp`
// +kubebuilder:printcolumn:name="V6ip",type=string,JSONPath=`.status.v6ip`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="NatGwDp",type=string,JSONPath=`.status.natGwDp`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type IptablesFIPRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec IptablesFIPRuleSpec `json:"spec,omitempty"`
	// +optional
	Status IptablesFIPRuleStatus `json:"status,omitempty"`
}

// IptablesFIPRuleList is a list of IptablesFIPRules.
// +kubebuilder:object:root=true
type IptablesFIPRuleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IptablesFIPRule `json:"items"`
}

// IptablesDnatType says whether other rules may use the same address.
// +kubebuilder:validation:Enum=exclusive;share
type IptablesDnatType string

// IptablesDnatRuleSpec defines the translation of a port of an external address.
type IptablesDnatRuleSpec struct {
	// eip is the name of the IptablesEIP.
	// +optional
	EIP string `json:"eip,omitempty"`
	// externalPort is the port of the external address, in decimal.
	// +optional
	ExternalPort string `json:"externalPort,omitempty"`
	// protocol is tcp or udp.
	// +optional
	Protocol string `json:"protocol,omitempty"`
	// internalIp is the address of the pod.
	// +optional
	InternalIP string `json:"internalIp,omitempty"`
	// internalPort is the port of the pod, in decimal.
	// +optional
	InternalPort string `json:"internalPort,omitempty"`
	// type is exclusive (no other rule has the same port of the address) or share.
	// +optional
	// +kubebuilder:default=exclusive
	Type IptablesDnatType `json:"type,omitempty"`
}

// IptablesDnatRuleStatus is the observed state of an IptablesDnatRule.
type IptablesDnatRuleStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	Ready bool `json:"ready,omitempty"`
	// +optional
	V4IP string `json:"v4ip,omitempty"`
	// +optional
	V6IP string `json:"v6ip,omitempty"`
	// natGwDp is the name of the VpcNatGateway.
	// +optional
	NatGwDp string `json:"natGwDp,omitempty"`
	// +optional
	InternalIP string `json:"internalIp,omitempty"`
	// +optional
	InternalPort string `json:"internalPort,omitempty"`
	// +optional
	ExternalPort string `json:"externalPort,omitempty"`
	// +optional
	Protocol string `json:"protocol,omitempty"`
	// redo is a field of Kube-OVN. It is accepted, and ignored.
	// +optional
	Redo string `json:"redo,omitempty"`
}

// IptablesDnatRule translates a port of an external address to a port of a pod. This version of Kiln has no controller for it: its condition Ready is False.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=iptables-dnat-rules,singular=iptables-dnat-rule,shortName=dnat,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Eip",type=string,JSONPath=`.spec.eip`
// +kubebuilder:printcolumn:name="Protocol",type=string,JSONPath=`.spec.protocol`
// +kubebuilder:printcolumn:name="V4ip",type=string,JSONPath=`.status.v4ip`
// +kubebuilder:printcolumn:name="V6ip",type=string,JSONPath=`.status.v6ip`
// +kubebuilder:printcolumn:name="InternalIp",type=string,JSONPath=`.spec.internalIp`
// +kubebuilder:printcolumn:name="ExternalPort",type=string,JSONPath=`.spec.externalPort`
// +kubebuilder:printcolumn:name="InternalPort",type=string,JSONPath=`.spec.internalPort`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="NatGwDp",type=string,JSONPath=`.status.natGwDp`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type IptablesDnatRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec IptablesDnatRuleSpec `json:"spec,omitempty"`
	// +optional
	Status IptablesDnatRuleStatus `json:"status,omitempty"`
}

// IptablesDnatRuleList is a list of IptablesDnatRules.
// +kubebuilder:object:root=true
type IptablesDnatRuleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IptablesDnatRule `json:"items"`
}

// IptablesSnatRuleSpec defines a source NAT.
type IptablesSnatRuleSpec struct {
	// eip is the name of the IptablesEIP.
	// +optional
	EIP string `json:"eip,omitempty"`
	// internalCIDR of the pods whose source address is translated.
	// +optional
	InternalCIDR string `json:"internalCIDR,omitempty"`
}

// IptablesSnatRuleStatus is the observed state of an IptablesSnatRule.
type IptablesSnatRuleStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	Ready bool `json:"ready,omitempty"`
	// +optional
	V4IP string `json:"v4ip,omitempty"`
	// +optional
	V6IP string `json:"v6ip,omitempty"`
	// natGwDp is the name of the VpcNatGateway.
	// +optional
	NatGwDp string `json:"natGwDp,omitempty"`
	// +optional
	InternalCIDR string `json:"internalCIDR,omitempty"`
	// redo is a field of Kube-OVN. It is accepted, and ignored.
	// +optional
	Redo string `json:"redo,omitempty"`
}

// IptablesSnatRule translates the source address of pods to an external address. This version of Kiln has no controller for it: its condition Ready is False.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=iptables-snat-rules,singular=iptables-snat-rule,shortName=snat,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="EIP",type=string,JSONPath=`.spec.eip`
// +kubebuilder:printcolumn:name="V4ip",type=string,JSONPath=`.status.v4ip`
// +kubebuilder:printcolumn:name="V6ip",type=string,JSONPath=`.status.v6ip`
// +kubebuilder:printcolumn:name="InternalCIDR",type=string,JSONPath=`.spec.internalCIDR`
// +kubebuilder:printcolumn:name="NatGwDp",type=string,JSONPath=`.status.natGwDp`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type IptablesSnatRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec IptablesSnatRuleSpec `json:"spec,omitempty"`
	// +optional
	Status IptablesSnatRuleStatus `json:"status,omitempty"`
}

// IptablesSnatRuleList is a list of IptablesSnatRules.
// +kubebuilder:object:root=true
type IptablesSnatRuleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IptablesSnatRule `json:"items"`
}
