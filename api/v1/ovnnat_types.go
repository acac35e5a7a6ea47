// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// OvnFipSpec defines a one-to-one translation of addresses.
type OvnFipSpec struct {
	// ovnEip is the name of the OvnEip.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	OvnEip string `json:"ovnEip,omitempty"`
	// ipType is vip if ipName is the name of a Vip; an IP otherwise.
	// +optional
	// +kubebuilder:validation:Enum="";ip;vip
	// +kubebuilder:validation:MaxLength=64
	IPType string `json:"ipType,omitempty"`
	// ipName is the name of the IP or Vip of the pod.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	IPName string `json:"ipName,omitempty"`
	// vpc of the addresses, without ipName.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Vpc string `json:"vpc,omitempty"`
	// v4Ip is the IPv4 address of the pod, instead of ipName.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self) && ip(self).family() == 4",message="must be an IPv4 address, such as 10.16.0.9"
	V4IP string `json:"v4Ip,omitempty"`
	// v6Ip is the IPv6 address of the pod, instead of ipName.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self) && ip(self).family() == 6",message="must be an IPv6 address, such as fd00::9"
	V6IP string `json:"v6Ip,omitempty"`
	// type is centralized (the default) or distributed: the node of the router's external port translates, or the node of the pod. distributed needs ipName with
	// the name of an IP.
	// +optional
	// +kubebuilder:validation:Enum="";centralized;distributed
	// +kubebuilder:validation:MaxLength=64
	Type string `json:"type,omitempty"`
}

// Types of an OvnFip.
const (
	OvnFipCentralized = "centralized"
	OvnFipDistributed = "distributed"
)

// OvnFipStatus is the observed state of an OvnFip.
type OvnFipStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	Ready bool `json:"ready,omitempty"`
	// +optional
	Vpc string `json:"vpc,omitempty"`
	// +optional
	V4Eip string `json:"v4Eip,omitempty"`
	// +optional
	V6Eip string `json:"v6Eip,omitempty"`
	// +optional
	V4IP string `json:"v4Ip,omitempty"`
	// +optional
	V6IP string `json:"v6Ip,omitempty"`
	// +optional
	MACAddress string `json:"macAddress,omitempty"`
	// validatedSpec is the last spec that was found valid. It is applied while the current spec is invalid or not validated yet.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	ValidatedSpec *OvnFipSpec `json:"validatedSpec,omitempty"`
}

// OvnFip translates the address of an OvnEip to the address of one pod and back.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=ovn-fips,singular=ovn-fip,shortName=ofip,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Vpc",type=string,JSONPath=`.status.vpc`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="V4Eip",type=string,JSONPath=`.status.v4Eip`
// +kubebuilder:printcolumn:name="V6Eip",type=string,JSONPath=`.status.v6Eip`
// +kubebuilder:printcolumn:name="V4Ip",type=string,JSONPath=`.status.v4Ip`
// +kubebuilder:printcolumn:name="V6Ip",type=string,JSONPath=`.status.v6Ip`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="IpType",type=string,JSONPath=`.spec.ipType`
// +kubebuilder:printcolumn:name="IpName",type=string,JSONPath=`.spec.ipName`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type OvnFip struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec OvnFipSpec `json:"spec,omitempty"`
	// +optional
	Status OvnFipStatus `json:"status,omitempty"`
}

// OvnFipList is a list of OvnFips.
// +kubebuilder:object:root=true
type OvnFipList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OvnFip `json:"items"`
}

// OvnSnatRuleSpec defines a source NAT.
type OvnSnatRuleSpec struct {
	// ovnEip is the name of the OvnEip.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	OvnEip string `json:"ovnEip,omitempty"`
	// vpcSubnet is the subnet whose pods the rule concerns.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	VpcSubnet string `json:"vpcSubnet,omitempty"`
	// ipName is the name of the IP of the only pod that the rule concerns.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	IPName string `json:"ipName,omitempty"`
	// vpc of the addresses, without ipName.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Vpc string `json:"vpc,omitempty"`
	// v4IpCidr are the IPv4 addresses that the rule concerns, instead of vpcSubnet or ipName.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	V4IPCIDR string `json:"v4IpCidr,omitempty"`
	// v6IpCidr are the IPv6 addresses that the rule concerns, instead of vpcSubnet or ipName.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	V6IPCIDR string `json:"v6IpCidr,omitempty"`
}

// OvnSnatRuleStatus is the observed state of an OvnSnatRule.
type OvnSnatRuleStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	Ready bool `json:"ready,omitempty"`
	// +optional
	Vpc string `json:"vpc,omitempty"`
	// +optional
	V4Eip string `json:"v4Eip,omitempty"`
	// +optional
	V6Eip string `json:"v6Eip,omitempty"`
	// +optional
	V4IPCIDR string `json:"v4IpCidr,omitempty"`
	// +optional
	V6IPCIDR string `json:"v6IpCidr,omitempty"`
	// validatedSpec is the last spec that was found valid. It is applied while the current spec is invalid or not validated yet.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	ValidatedSpec *OvnSnatRuleSpec `json:"validatedSpec,omitempty"`
}

// OvnSnatRule translates the source address of pods to the address of an OvnEip.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=ovn-snat-rules,singular=ovn-snat-rule,shortName=osnat,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Vpc",type=string,JSONPath=`.status.vpc`
// +kubebuilder:printcolumn:name="V4Eip",type=string,JSONPath=`.status.v4Eip`
// +kubebuilder:printcolumn:name="V6Eip",type=string,JSONPath=`.status.v6Eip`
// +kubebuilder:printcolumn:name="V4IpCidr",type=string,JSONPath=`.status.v4IpCidr`
// +kubebuilder:printcolumn:name="V6IpCidr",type=string,JSONPath=`.status.v6IpCidr`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type OvnSnatRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec OvnSnatRuleSpec `json:"spec,omitempty"`
	// +optional
	Status OvnSnatRuleStatus `json:"status,omitempty"`
}

// OvnSnatRuleList is a list of OvnSnatRules.
// +kubebuilder:object:root=true
type OvnSnatRuleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OvnSnatRule `json:"items"`
}

// OvnDnatRuleSpec defines the translation of a port of an OvnEip.
type OvnDnatRuleSpec struct {
	// ovnEip is the name of the OvnEip.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	OvnEip string `json:"ovnEip,omitempty"`
	// ipType is vip if ipName is the name of a Vip; an IP otherwise.
	// +optional
	// +kubebuilder:validation:Enum="";ip;vip
	// +kubebuilder:validation:MaxLength=64
	IPType string `json:"ipType,omitempty"`
	// ipName is the name of the IP or Vip of the pod.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	IPName string `json:"ipName,omitempty"`
	// vpc of the addresses, without ipName.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Vpc string `json:"vpc,omitempty"`
	// v4Ip is the IPv4 address of the pod, instead of ipName.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self) && ip(self).family() == 4",message="must be an IPv4 address, such as 10.16.0.9"
	V4IP string `json:"v4Ip,omitempty"`
	// v6Ip is the IPv6 address of the pod, instead of ipName.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self) && ip(self).family() == 6",message="must be an IPv6 address, such as fd00::9"
	V6IP string `json:"v6Ip,omitempty"`
	// protocol is tcp, udp or sctp.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	Protocol string `json:"protocol,omitempty"`
	// internalPort is the port of the pod, in decimal.
	// +optional
	// +kubebuilder:validation:MaxLength=5
	InternalPort string `json:"internalPort,omitempty"`
	// externalPort is the port of the OvnEip, in decimal.
	// +optional
	// +kubebuilder:validation:MaxLength=5
	ExternalPort string `json:"externalPort,omitempty"`
}

// OvnDnatRuleStatus is the observed state of an OvnDnatRule.
type OvnDnatRuleStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	Ready bool `json:"ready,omitempty"`
	// +optional
	Vpc string `json:"vpc,omitempty"`
	// +optional
	V4Eip string `json:"v4Eip,omitempty"`
	// +optional
	V6Eip string `json:"v6Eip,omitempty"`
	// +optional
	V4IP string `json:"v4Ip,omitempty"`
	// +optional
	V6IP string `json:"v6Ip,omitempty"`
	// +optional
	Protocol string `json:"protocol,omitempty"`
	// +optional
	InternalPort string `json:"internalPort,omitempty"`
	// +optional
	ExternalPort string `json:"externalPort,omitempty"`
	// +optional
	IPName string `json:"ipName,omitempty"`
	// validatedSpec is the last spec that was found valid. It is applied while the current spec is invalid or not validated yet.
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	ValidatedSpec *OvnDnatRuleSpec `json:"validatedSpec,omitempty"`
}

// OvnDnatRule translates a port of an OvnEip to a port of a pod.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=ovn-dnat-rules,singular=ovn-dnat-rule,shortName=odnat,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Vpc",type=string,JSONPath=`.status.vpc`
// +kubebuilder:printcolumn:name="Eip",type=string,JSONPath=`.spec.ovnEip`
// +kubebuilder:printcolumn:name="Protocol",type=string,JSONPath=`.status.protocol`
// +kubebuilder:printcolumn:name="V4Eip",type=string,JSONPath=`.status.v4Eip`
// +kubebuilder:printcolumn:name="V6Eip",type=string,JSONPath=`.status.v6Eip`
// +kubebuilder:printcolumn:name="V4Ip",type=string,JSONPath=`.status.v4Ip`
// +kubebuilder:printcolumn:name="V6Ip",type=string,JSONPath=`.status.v6Ip`
// +kubebuilder:printcolumn:name="InternalPort",type=string,JSONPath=`.status.internalPort`
// +kubebuilder:printcolumn:name="ExternalPort",type=string,JSONPath=`.status.externalPort`
// +kubebuilder:printcolumn:name="IpName",type=string,JSONPath=`.spec.ipName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type OvnDnatRule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec OvnDnatRuleSpec `json:"spec,omitempty"`
	// +optional
	Status OvnDnatRuleStatus `json:"status,omitempty"`
}

// OvnDnatRuleList is a list of OvnDnatRules.
// +kubebuilder:object:root=true
type OvnDnatRuleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OvnDnatRule `json:"items"`
}
