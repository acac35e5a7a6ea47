// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DenyAllGroup is the name of a group that lets nothing through. There is no such object: a pod that names it is closed.
const DenyAllGroup = "kubeovn_deny_all"

// LastSecurityGroupTier is the tier of groups that decide what those of tier 0 leave to them.
const LastSecurityGroupTier = 1

// SecurityGroupSpec is what pods that name the group in the annotation `security_groups` exchange with others.
// +kubebuilder:validation:XValidation:rule="!has(self.tier) || self.tier != 1 || ((!has(self.ingressRules) || self.ingressRules.all(r, r.policy != 'pass')) && (!has(self.egressRules) || self.egressRules.all(r, r.policy != 'pass')))",message="there is no tier behind tier 1 to pass to: write allow or drop"
type SecurityGroupSpec struct {
	// ingressRules are about what comes to the pods.
	// +optional
	// +kubebuilder:validation:MaxItems=1024
	IngressRules []SecurityGroupRule `json:"ingressRules,omitempty"`
	// egressRules are about what the pods send.
	// +optional
	// +kubebuilder:validation:MaxItems=1024
	EgressRules []SecurityGroupRule `json:"egressRules,omitempty"`
	// allowSameGroupTraffic lets pods of the group reach each other, where no rule says otherwise.
	// +optional
	AllowSameGroupTraffic bool `json:"allowSameGroupTraffic,omitempty"`
	// tier 0 decides first. What its rules pass, and what pods do that are in no group of tier 0, groups of tier 1 decide.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1
	Tier int `json:"tier,omitempty"`
}

// SecurityGroupRemoteType says what a rule's other side is given by.
// +kubebuilder:validation:Enum=address;securityGroup
type SecurityGroupRemoteType string

// Kinds of other sides.
const (
	RemoteAddress       SecurityGroupRemoteType = "address"
	RemoteSecurityGroup SecurityGroupRemoteType = "securityGroup"
)

// SecurityGroupPolicy is what happens to the packets of a rule.
// +kubebuilder:validation:Enum=allow;drop;pass
type SecurityGroupPolicy string

// What happens to packets.
const (
	SecurityGroupAllow SecurityGroupPolicy = "allow"
	SecurityGroupDrop  SecurityGroupPolicy = "drop"
	SecurityGroupPass  SecurityGroupPolicy = "pass"
)

// SecurityGroupRule is one rule of one family.
// +kubebuilder:validation:XValidation:rule="self.remoteType != 'address' || has(self.remoteAddress) && (isIP(self.remoteAddress) && ip(self.remoteAddress).family() == (self.ipVersion == 'ipv4' ? 4 : 6) || isCIDR(self.remoteAddress) && cidr(self.remoteAddress).ip().family() == (self.ipVersion == 'ipv4' ? 4 : 6))",message="remoteAddress must be an address or a CIDR of the family in ipVersion"
// +kubebuilder:validation:XValidation:rule="self.remoteType != 'securityGroup' || has(self.remoteSecurityGroup) && size(self.remoteSecurityGroup) > 0",message="remoteSecurityGroup must name a group"
// +kubebuilder:validation:XValidation:rule="!has(self.localAddress) || size(self.localAddress) == 0 || isIP(self.localAddress) && ip(self.localAddress).family() == (self.ipVersion == 'ipv4' ? 4 : 6) || isCIDR(self.localAddress) && cidr(self.localAddress).ip().family() == (self.ipVersion == 'ipv4' ? 4 : 6)",message="localAddress must be an address or a CIDR of the family in ipVersion"
// +kubebuilder:validation:XValidation:rule="!has(self.protocol) || !(self.protocol in ['tcp', 'udp']) || !has(self.portRangeMin) && !has(self.portRangeMax) || has(self.portRangeMin) && has(self.portRangeMax) && (self.portRangeMin > 0 || self.portRangeMax == 0) && self.portRangeMin <= self.portRangeMax",message="portRangeMin and portRangeMax go together, the lower one first"
// +kubebuilder:validation:XValidation:rule="!has(self.protocol) || !(self.protocol in ['tcp', 'udp']) || !has(self.sourcePortRangeMin) && !has(self.sourcePortRangeMax) || has(self.sourcePortRangeMin) && has(self.sourcePortRangeMax) && (self.sourcePortRangeMin > 0 || self.sourcePortRangeMax == 0) && self.sourcePortRangeMin <= self.sourcePortRangeMax",message="sourcePortRangeMin and sourcePortRangeMax go together, the lower one first"
type SecurityGroupRule struct {
	// ipVersion is ipv4 or ipv6.
	// +kubebuilder:validation:Enum=ipv4;ipv6
	IPVersion string `json:"ipVersion"`
	// protocol is tcp, udp, icmp (of the family), or all, which is what it is when empty.
	// +optional
	// +kubebuilder:validation:Enum="";all;icmp;tcp;udp
	Protocol string `json:"protocol,omitempty"`
	// priority among the rules of all groups of the pod in the tier; 1 goes first.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16384
	Priority int `json:"priority"`
	// remoteType says which field names the other side: remoteAddress or remoteSecurityGroup.
	RemoteType SecurityGroupRemoteType `json:"remoteType"`
	// remoteAddress is an address or a CIDR.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RemoteAddress string `json:"remoteAddress,omitempty"`
	// remoteSecurityGroup is the pods that name that group.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	RemoteSecurityGroup string `json:"remoteSecurityGroup,omitempty"`
	// portRangeMin is the lowest destination port; with tcp and udp only, all ports when it is empty.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	PortRangeMin int `json:"portRangeMin,omitempty"`
	// portRangeMax is the highest destination port.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	PortRangeMax int `json:"portRangeMax,omitempty"`
	// localAddress is an address or a CIDR of the pods' own side, for pods with further addresses; any when empty.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	LocalAddress string `json:"localAddress,omitempty"`
	// sourcePortRangeMin is the lowest source port; with tcp and udp only, all ports when it is empty.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	SourcePortRangeMin int `json:"sourcePortRangeMin,omitempty"`
	// sourcePortRangeMax is the highest source port.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	SourcePortRangeMax int `json:"sourcePortRangeMax,omitempty"`
	// policy is allow, drop, or, in tier 0, pass, which leaves the decision to tier 1.
	Policy SecurityGroupPolicy `json:"policy"`
}

// SecurityGroupStatus is what is in force of a group.
type SecurityGroupStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// portGroup is OVN's port group of the pods, on which the rules are.
	// +optional
	PortGroup string `json:"portGroup,omitempty"`
	// allowSameGroupTraffic as it is in force.
	// +optional
	AllowSameGroupTraffic bool `json:"allowSameGroupTraffic,omitempty"`
	// ingressMd5 is kept as it is: what differs is found by comparing rules.
	// +optional
	IngressMd5 string `json:"ingressMd5,omitempty"`
	// egressMd5 is kept as it is.
	// +optional
	EgressMd5 string `json:"egressMd5,omitempty"`
	// ingressLastSyncSuccess says that the ingress rules are in force.
	// +optional
	IngressLastSyncSuccess bool `json:"ingressLastSyncSuccess,omitempty"`
	// egressLastSyncSuccess says that the egress rules are in force.
	// +optional
	EgressLastSyncSuccess bool `json:"egressLastSyncSuccess,omitempty"`
}

// SecurityGroup is rules for the pods that name it. What none of a pod's groups allows is dropped.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=security-groups,singular=security-group,shortName=sg
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Tier",type=integer,JSONPath=`.spec.tier`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
type SecurityGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec SecurityGroupSpec `json:"spec,omitempty"`
	// +optional
	Status SecurityGroupStatus `json:"status,omitempty"`
}

// SecurityGroupList is a list of SecurityGroups.
// +kubebuilder:object:root=true
type SecurityGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SecurityGroup `json:"items"`
}
