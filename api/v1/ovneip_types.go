// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// OvnEipSpec defines addresses of an external subnet for pods, or for a router's port. Subnet, addresses and type of an OvnEip cannot change.
// +kubebuilder:validation:XValidation:rule=`(has(self.externalSubnet) ? self.externalSubnet : "") == (has(oldSelf.externalSubnet) ? oldSelf.externalSubnet : "")`,message="externalSubnet cannot change: create another OvnEip",messageExpression=`'externalSubnet cannot change from "' + (has(oldSelf.externalSubnet) ? oldSelf.externalSubnet : "") + '" to "' + (has(self.externalSubnet) ? self.externalSubnet : "") + '": create another OvnEip'`
// +kubebuilder:validation:XValidation:rule=`(has(self.v4Ip) ? self.v4Ip : "") == (has(oldSelf.v4Ip) ? oldSelf.v4Ip : "")`,message="v4Ip cannot change: create another OvnEip",messageExpression=`'v4Ip cannot change from "' + (has(oldSelf.v4Ip) ? oldSelf.v4Ip : "") + '" to "' + (has(self.v4Ip) ? self.v4Ip : "") + '": create another OvnEip'`
// +kubebuilder:validation:XValidation:rule=`(has(self.v6Ip) ? self.v6Ip : "") == (has(oldSelf.v6Ip) ? oldSelf.v6Ip : "")`,message="v6Ip cannot change: create another OvnEip",messageExpression=`'v6Ip cannot change from "' + (has(oldSelf.v6Ip) ? oldSelf.v6Ip : "") + '" to "' + (has(self.v6Ip) ? self.v6Ip : "") + '": create another OvnEip'`
// +kubebuilder:validation:XValidation:rule=`(has(self.macAddress) ? self.macAddress : "") == (has(oldSelf.macAddress) ? oldSelf.macAddress : "")`,message="macAddress cannot change: create another OvnEip",messageExpression=`'macAddress cannot change from "' + (has(oldSelf.macAddress) ? oldSelf.macAddress : "") + '" to "' + (has(self.macAddress) ? self.macAddress : "") + '": create another OvnEip'`
// +kubebuilder:validation:XValidation:rule=`(has(self.type) && self.type != "" ? self.type : "nat") == (has(oldSelf.type) && oldSelf.type != "" ? oldSelf.type : "nat")`,message="type cannot change: create another OvnEip",messageExpression=`'type cannot change from "' + (has(oldSelf.type) ? oldSelf.type : "") + '" to "' + (has(self.type) ? self.type : "") + '": create another OvnEip'`
type OvnEipSpec struct {
	// externalSubnet of the addresses. `external` when empty.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ExternalSubnet string `json:"externalSubnet,omitempty"`
	// v4Ip is the IPv4 address. If v4Ip and v6Ip are both empty, the OvnEip gets an address of each family of the subnet.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self) && ip(self).family() == 4",message="must be an IPv4 address, such as 10.16.0.9"
	V4IP string `json:"v4Ip,omitempty"`
	// v6Ip is the IPv6 address.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self == '' || isIP(self) && ip(self).family() == 6",message="must be an IPv6 address, such as fd00::9"
	V6IP string `json:"v6Ip,omitempty"`
	// macAddress of the addresses on the external network. When empty, it is derived from the first address.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	MACAddress string `json:"macAddress,omitempty"`
	// type is nat (the default, for addresses that rules translate), lrp (the port of a VPC's router, if the OvnEip has the name VPC-SUBNET) or lsp (node port on the
	// external network). This version only reserves the addresses of type lsp.
	// +optional
	// +kubebuilder:validation:Enum="";nat;lrp;lsp
	// +kubebuilder:validation:MaxLength=64
	Type string `json:"type,omitempty"`
	// allowedNamespaces whose pods may request the addresses by the annotations eip and snat, and whose Services of loadBalancerClass kubeovn.io/ovn-eip by the annotation
	// ip_address, or * for all. When a namespace is removed from the list, its pods and Services lose the addresses. Rules of administrators need no entry. Without effect with tenancy.membership Open.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4096
	AllowedNamespaces []AllowedNamespace `json:"allowedNamespaces,omitempty"`
}

// PodOfRule is the annotation of OvnFips and OvnSnatRules that kube-ovn-controller makes for pods: the namespace and the owner of the pod's port, with a slash between them. The
// owner is the pod, or the virtual machine that it runs (Port).
const PodOfRule = "kubeovn.io/pod"

// EgressOfRule is the annotation of such an OvnSnatRule with the name of the EgressAddress that selects the pod. A rule that the pod requests itself does not have it.
const EgressOfRule = "kubeovn.io/egress-address"

// Labels of OvnEips, and of the rules that use them, by which users of Kube-OVN select objects. Addresses of IPv6 have a dash for each colon.
const (
	LabelEipType  = "ovn.kubernetes.io/ovn_eip_type"
	LabelEipV4    = "ovn.kubernetes.io/eip_v4_ip"
	LabelEipV6    = "ovn.kubernetes.io/eip_v6_ip"
	LabelDnatPort = "ovn.kubernetes.io/vpc_dnat_eport"
)

// ClassOvnEip is the loadBalancerClass of Services of custom VPCs with the addresses of an OvnEip, which lists their namespace in allowedNamespaces.
const ClassOvnEip = "kubeovn.io/ovn-eip"

// OvnEipTypeNAT is the type of an OvnEip whose addresses are translated by rules.
const OvnEipTypeNAT = "nat"

// OvnEipTypeLRP is the type of an OvnEip with the addresses of a router's port.
const OvnEipTypeLRP = "lrp"

// DefaultExternalSubnet is the subnet of an OvnEip whose externalSubnet is empty.
const DefaultExternalSubnet = "external"

// OvnEipStatus is the observed state of an OvnEip.
type OvnEipStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	V4IP string `json:"v4Ip,omitempty"`
	// +optional
	V6IP string `json:"v6Ip,omitempty"`
	// +optional
	MACAddress string `json:"macAddress,omitempty"`
	// +optional
	Type string `json:"type,omitempty"`
	// nat lists the users of the addresses, separated by commas. `fip`: an OvnFip, `snat`: OvnSnatRules, `dnat`: OvnDnatRules, `lb`: RouterLBRules or Services.
	// +optional
	NAT string `json:"nat,omitempty"`
	// releasing has the former translations of the addresses whose connections nodes may still track, by an ID. Until the nodes have ended these connections, the
	// addresses get no other translation that would send their packets to the former owner.
	// +optional
	Releasing map[string]OvnEipRelease `json:"releasing,omitempty"`
	// ready is the status of the condition Ready.
	// +optional
	Ready bool `json:"ready,omitempty"`
}

// OvnEipRelease is a former translation of an address of an OvnEip.
type OvnEipRelease struct {
	// rule is the kind and the name of the rule that had the translation.
	Rule string `json:"rule"`
	// egressAddress is the EgressAddress that selected the pod. Rules of its other pods do not wait.
	// +optional
	EgressAddress string `json:"egressAddress,omitempty"`
	// vpc is the VPC on whose router it was translated.
	VPC string `json:"vpc"`
	// address is the external address.
	Address string `json:"address"`
	// internal is the address to which it was translated, or the CIDR whose packets left with it.
	Internal string `json:"internal"`
	// source is true for a translation of sources only.
	// +optional
	Source bool `json:"source,omitempty"`
	// protocol and port are those of an OvnDnatRule.
	// +optional
	Protocol string `json:"protocol,omitempty"`
	// +optional
	Port int32 `json:"port,omitempty"`
	// nodes have not confirmed yet that they have ended the connections.
	// +optional
	Nodes []string `json:"nodes,omitempty"`
	// absent nodes have not confirmed either, and the addresses no longer wait for them: their Nodes were deleted, or five days have passed. A node that returns ends the
	// connections, and until then it is the last one to host ports of routers.
	// +optional
	Absent []string `json:"absent,omitempty"`
	// since is the time at which the translation was withdrawn. The addresses wait for the longest time-out of connection tracking, five days.
	Since metav1.Time `json:"since"`
}

// OvnEip reserves addresses of an external subnet.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=ovn-eips,singular=ovn-eip,shortName=oeip,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="V4IP",type=string,JSONPath=`.status.v4Ip`
// +kubebuilder:printcolumn:name="V6IP",type=string,JSONPath=`.status.v6Ip`
// +kubebuilder:printcolumn:name="Mac",type=string,priority=1,JSONPath=`.status.macAddress`
// +kubebuilder:printcolumn:name="Type",type=string,priority=1,JSONPath=`.status.type`
// +kubebuilder:printcolumn:name="Nat",type=string,JSONPath=`.status.nat`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="ExternalSubnet",type=string,JSONPath=`.spec.externalSubnet`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
type OvnEip struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec OvnEipSpec `json:"spec,omitempty"`
	// +optional
	Status OvnEipStatus `json:"status,omitempty"`
}

// OvnEipList is a list of OvnEips.
// +kubebuilder:object:root=true
type OvnEipList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OvnEip `json:"items"`
}
