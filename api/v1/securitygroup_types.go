// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DenyAllGroup is a reserved name. No such group exists, so a pod that names it receives and sends nothing.
const DenyAllGroup = "kubeovn_deny_all"

// LastSecurityGroupTier is the last tier of security groups. It is evaluated for traffic that tier 0 did not decide.
const LastSecurityGroupTier = 1

// SecurityGroupSpec defines the traffic of the pods that name the group in the annotation `security_groups`.
// +kubebuilder:validation:XValidation:rule="!has(self.tier) || self.tier != 1 || ((!has(self.ingressRules) || self.ingressRules.all(r, r.policy != 'pass')) && (!has(self.egressRules) || self.egressRules.all(r, r.policy != 'pass')))",message="there is no tier behind tier 1 to pass to: write allow or drop"
type SecurityGroupSpec struct {
	// ingressRules apply to connections to the pods.
	// +optional
	// +kubebuilder:validation:MaxItems=1024
	IngressRules []SecurityGroupRule `json:"ingressRules,omitempty"`
	// egressRules apply to connections from the pods.
	// +optional
	// +kubebuilder:validation:MaxItems=1024
	EgressRules []SecurityGroupRule `json:"egressRules,omitempty"`
	// allowSameGroupTraffic allows traffic between pods of the group, unless a rule decides otherwise.
	// +optional
	AllowSameGroupTraffic bool `json:"allowSameGroupTraffic,omitempty"`
	// tier is 0 (the default) or 1. Groups of tier 0 are evaluated first. Groups of tier 1 decide traffic that a rule of tier 0 passes, and
	// traffic of pods without a group of tier 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1
	Tier int `json:"tier,omitempty"`
	// allowedNamespaces whose pods may name the group, or * for all. A pod of another namespace that names it is not in the group, and nothing passes by it. A pod that is
	// in the group stays in it when its namespace is removed from the list. Without effect with tenancy.membership Open.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=4096
	AllowedNamespaces []AllowedNamespace `json:"allowedNamespaces,omitempty"`
}

// SecurityGroupRemoteType defines which field of a rule selects the remote side.
// +kubebuilder:validation:Enum=address;securityGroup
type SecurityGroupRemoteType string

// Values of SecurityGroupRemoteType.
const (
	RemoteAddress       SecurityGroupRemoteType = "address"
	RemoteSecurityGroup SecurityGroupRemoteType = "securityGroup"
)

// SecurityGroupPolicy is the action of a rule.
// +kubebuilder:validation:Enum="";allow;deny;drop;pass
type SecurityGroupPolicy string

// Values of SecurityGroupPolicy.
const (
	SecurityGroupAllow SecurityGroupPolicy = "allow"
	SecurityGroupDeny  SecurityGroupPolicy = "deny" // the same as drop
	SecurityGroupDrop  SecurityGroupPolicy = "drop"
	SecurityGroupPass  SecurityGroupPolicy = "pass"
)

// SecurityGroupRule is a rule for packets of one address family.
// +kubebuilder:validation:XValidation:rule="self.remoteType != 'address' || has(self.remoteAddress) && (isIP(self.remoteAddress) && ip(self.remoteAddress).family() == (self.ipVersion == 'ipv4' ? 4 : 6) || isCIDR(self.remoteAddress) && cidr(self.remoteAddress).ip().family() == (self.ipVersion == 'ipv4' ? 4 : 6))",message="remoteAddress must be an address or a CIDR of the family in ipVersion",messageExpression=`'remoteAddress "' + (has(self.remoteAddress) ? self.remoteAddress : "") + '" must be an address or a CIDR of the family in ipVersion, ' + self.ipVersion`
// +kubebuilder:validation:XValidation:rule="self.remoteType != 'securityGroup' || has(self.remoteSecurityGroup) && size(self.remoteSecurityGroup) > 0",message="remoteSecurityGroup must name a group"
// +kubebuilder:validation:XValidation:rule="!has(self.localAddress) || size(self.localAddress) == 0 || isIP(self.localAddress) && ip(self.localAddress).family() == (self.ipVersion == 'ipv4' ? 4 : 6) || isCIDR(self.localAddress) && cidr(self.localAddress).ip().family() == (self.ipVersion == 'ipv4' ? 4 : 6)",message="localAddress must be an address or a CIDR of the family in ipVersion",messageExpression=`'localAddress "' + self.localAddress + '" must be an address or a CIDR of the family in ipVersion, ' + self.ipVersion`
// +kubebuilder:validation:XValidation:rule="!has(self.protocol) || !(self.protocol in ['tcp', 'udp']) || !has(self.portRangeMin) && !has(self.portRangeMax) || has(self.portRangeMin) && has(self.portRangeMax) && (self.portRangeMin > 0 || self.portRangeMax == 0) && self.portRangeMin <= self.portRangeMax",message="portRangeMin and portRangeMax go together, the lower one first: write both",messageExpression=`!has(self.portRangeMin) || !has(self.portRangeMax) ? 'portRangeMin and portRangeMax go together: write both' : self.portRangeMin == 0 ? 'portRangeMin 0 is no port: write the lowest port, or leave both out' : 'portRangeMin is above portRangeMax: exchange them'`
// +kubebuilder:validation:XValidation:rule="!has(self.protocol) || !(self.protocol in ['tcp', 'udp']) || !has(self.sourcePortRangeMin) && !has(self.sourcePortRangeMax) || has(self.sourcePortRangeMin) && has(self.sourcePortRangeMax) && (self.sourcePortRangeMin > 0 || self.sourcePortRangeMax == 0) && self.sourcePortRangeMin <= self.sourcePortRangeMax",message="sourcePortRangeMin and sourcePortRangeMax go together, the lower one first: write both",messageExpression=`!has(self.sourcePortRangeMin) || !has(self.sourcePortRangeMax) ? 'sourcePortRangeMin and sourcePortRangeMax go together: write both' : self.sourcePortRangeMin == 0 ? 'sourcePortRangeMin 0 is no port: write the lowest port, or leave both out' : 'sourcePortRangeMin is above sourcePortRangeMax: exchange them'`
// +kubebuilder:validation:XValidation:rule="has(self.protocol) && self.protocol in ['tcp', 'udp'] || (!has(self.portRangeMin) || self.portRangeMin == 0) && (!has(self.portRangeMax) || self.portRangeMax == 0) && (!has(self.sourcePortRangeMin) || self.sourcePortRangeMin == 0) && (!has(self.sourcePortRangeMax) || self.sourcePortRangeMax == 0)",message="ports need protocol tcp or udp: write a rule for each, or leave the ports out"
type SecurityGroupRule struct {
	// ipVersion is ipv4 or ipv6.
	// +kubebuilder:validation:Enum=ipv4;ipv6
	IPVersion string `json:"ipVersion"`
	// protocol is tcp, udp, icmp (ICMPv6 if ipVersion is ipv6) or all. all when empty.
	// +optional
	// +kubebuilder:validation:Enum="";all;icmp;tcp;udp
	Protocol string `json:"protocol,omitempty"`
	// priority is from 1 to 16384 and orders the rules of all groups of a pod in the same tier. 1 is evaluated first.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16384
	Priority int `json:"priority"`
	// remoteType is address (the rule uses remoteAddress) or securityGroup (the rule uses remoteSecurityGroup).
	RemoteType SecurityGroupRemoteType `json:"remoteType"`
	// remoteAddress is an address or a CIDR of the family in ipVersion.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	RemoteAddress string `json:"remoteAddress,omitempty"`
	// remoteSecurityGroup is the name of a group. It matches the pods of that group.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	RemoteSecurityGroup string `json:"remoteSecurityGroup,omitempty"`
	// portRangeMin is the lowest destination port, for tcp and udp only. When empty, the rule matches all ports.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	PortRangeMin int `json:"portRangeMin,omitempty"`
	// portRangeMax is the highest destination port.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	PortRangeMax int `json:"portRangeMax,omitempty"`
	// localAddress is an address or a CIDR of the pod, for pods with several addresses. When empty, the rule matches all of them.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	LocalAddress string `json:"localAddress,omitempty"`
	// sourcePortRangeMin is the lowest source port, for tcp and udp only. When empty, the rule matches all ports.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	SourcePortRangeMin int `json:"sourcePortRangeMin,omitempty"`
	// sourcePortRangeMax is the highest source port.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	SourcePortRangeMax int `json:"sourcePortRangeMax,omitempty"`
	// policy is allow, drop, deny (the same as drop) or pass. pass is allowed in tier 0 only and leaves the decision to the following
	// policies and tier 1. drop when empty.
	// +optional
	Policy SecurityGroupPolicy `json:"policy,omitempty"`
}

// SecurityGroupStatus is the observed state of a group.
type SecurityGroupStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// portGroup is the OVN port group that holds the pods' ports and the rules.
	// +optional
	PortGroup string `json:"portGroup,omitempty"`
	// allowSameGroupTraffic is the value that is currently applied.
	// +optional
	AllowSameGroupTraffic bool `json:"allowSameGroupTraffic,omitempty"`
	// ingressMd5 is a field of Kube-OVN that Kiln does not use. An existing value is retained.
	// +optional
	IngressMd5 string `json:"ingressMd5,omitempty"`
	// egressMd5 is a field of Kube-OVN that Kiln does not use. An existing value is retained.
	// +optional
	EgressMd5 string `json:"egressMd5,omitempty"`
	// ingressLastSyncSuccess is true if the ingress rules are applied.
	// +optional
	IngressLastSyncSuccess bool `json:"ingressLastSyncSuccess,omitempty"`
	// egressLastSyncSuccess is true if the egress rules are applied.
	// +optional
	EgressLastSyncSuccess bool `json:"egressLastSyncSuccess,omitempty"`
}

// SecurityGroup is a set of rules for the pods that name it. Traffic of such a pod that none of its groups allows is dropped.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=security-groups,singular=security-group,shortName=sg,categories=kiln
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Tier",type=integer,JSONPath=`.spec.tier`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
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
