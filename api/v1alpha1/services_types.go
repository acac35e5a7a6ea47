// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "slices"

// NodeAccess defines which component serves Services to nodes and clients outside.
// +kubebuilder:validation:Enum=Kiln;KubeProxy
type NodeAccess string

// Values of NodeAccess.
const (
	NodeAccessKiln      NodeAccess = "Kiln"
	NodeAccessKubeProxy NodeAccess = "KubeProxy"
)

// PodAccess defines where the connections of pods to Services get their endpoints.
// +kubebuilder:validation:Enum=OVN;Node
type PodAccess string

// Values of PodAccess.
const (
	PodAccessOVN  PodAccess = "OVN"
	PodAccessNode PodAccess = "Node"
)

// Services defines how Services are served.
type Services struct {
	// podAccess is OVN (load balancers of OVN serve Services to pods) or Node (OVN has none: a CNI plugin that is chained after Kiln's serves
	// them, otherwise the pod's node). With Node, Services whose endpoints are in a custom VPC are not served. SwitchLBRules and RouterLBRules
	// do not depend on it.
	// +optional
	// +kubebuilder:default=OVN
	PodAccess PodAccess `json:"podAccess,omitempty"`
	// nodeAccess is KubeProxy (kube-proxy serves Services on nodes) or Kiln (the agents serve ClusterIPs, external addresses and node ports
	// on nodes; kube-proxy must not run).
	// +optional
	// +kubebuilder:default=KubeProxy
	NodeAccess NodeAccess `json:"nodeAccess,omitempty"`
	// loadBalancerPools are addresses for Services of type LoadBalancer whose loadBalancerClass is the class of a pool. Services with another class,
	// or none, are left to other controllers. A Service keeps its addresses when its pool changes.
	// +optional
	// +listType=map
	// +listMapKey=class
	// +kubebuilder:validation:MaxItems=16
	LoadBalancerPools []LoadBalancerPool `json:"loadBalancerPools,omitempty"`
}

// LoadBalancerPool holds addresses for Services of type LoadBalancer.
type LoadBalancerPool struct {
	// class is the loadBalancerClass of the Services that get addresses of this pool, for example `example.com/public`. `kubeovn.io/ovn-eip` is the class of Services with the
	// addresses of OvnEips.
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:XValidation:rule=`self.matches(r'^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$')`,message="must be a domain and a name, such as example.com/public"
	// +kubebuilder:validation:XValidation:rule="self != 'kubeovn.io/ovn-eip'",message="is the class of Services with the addresses of OvnEips: choose another one"
	Class string `json:"class"`
	// addresses are addresses, ranges `a..b` and CIDRs, of one family or both. The network outside routes them to nodes, or the speaker announces them.
	// Addresses of Subnets of the default VPC, nodes, the API server, ClusterIPs and BGP peers are not assigned.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=80
	// +listType=atomic
	// +kubebuilder:validation:XValidation:rule="self.all(a, isCIDR(a) ? cidr(a) == cidr(a).masked() && cidr(a).ip().isGlobalUnicast() : isIP(a) ? ip(a).isGlobalUnicast() : a.contains('..') && isIP(a.substring(0, a.indexOf('..'))) && isIP(a.substring(a.indexOf('..') + 2)) && ip(a.substring(0, a.indexOf('..'))).isGlobalUnicast() && ip(a.substring(0, a.indexOf('..'))).family() == ip(a.substring(a.indexOf('..') + 2)).family())",message="must be unicast addresses, ranges like 192.0.2.10..192.0.2.20, or CIDRs without bits after the prefix length",messageExpression="'must be unicast addresses, ranges like 192.0.2.10..192.0.2.20, or CIDRs without bits after the prefix length, and are ' + self.join(', ')"
	Addresses []string `json:"addresses"`
	// namespaces whose Services get addresses; `*` is every namespace. By default none.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:XValidation:rule=`self.matches(r'^([*]|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$')`,message="must be the name of a namespace, or * for all"
	Namespaces []string `json:"namespaces,omitempty"`
	// announcement is Annotated, the default, or Always. Always: kube-ovn-speaker announces the addresses that Services of the class have from the
	// pool, unless their annotation `ovn.kubernetes.io/bgp` is `false`. Annotated: Services are announced by their annotation, in spec.speaker.namespaces.
	// +optional
	Announcement PoolAnnouncement `json:"announcement,omitempty"`
}

// PoolAnnouncement defines which Services with addresses of a pool are announced by BGP.
// +kubebuilder:validation:Enum=Annotated;Always
type PoolAnnouncement string

// Values of PoolAnnouncement.
const (
	AnnounceAnnotated PoolAnnouncement = "Annotated"
	AnnounceAlways    PoolAnnouncement = "Always"
)

// Permits reports whether Services of a namespace get addresses of the pool.
func (p *LoadBalancerPool) Permits(namespace string) bool {
	return slices.Contains(p.Namespaces, namespace) || slices.Contains(p.Namespaces, SpeakerAllNamespaces)
}

// NetworkPolicies defines whether Kiln applies the policies of Kubernetes.
// +kubebuilder:validation:Enum=Enforced;Ignored
type NetworkPolicies string

// Values of NetworkPolicies.
const (
	NetworkPoliciesEnforced NetworkPolicies = "Enforced"
	NetworkPoliciesIgnored  NetworkPolicies = "Ignored"
)

// Policies defines which policies Kiln applies to pods.
type Policies struct {
	// networkPolicies is Enforced or Ignored. It covers NetworkPolicies, AdminNetworkPolicies, BaselineAdminNetworkPolicies and
	// ClusterNetworkPolicies: Ignored is for clusters where another component enforces them, such as a CNI plugin that is chained after
	// Kiln's. SecurityGroups, private subnets and acls of Subnets apply in both cases.
	// +optional
	// +kubebuilder:default=Enforced
	NetworkPolicies NetworkPolicies `json:"networkPolicies,omitempty"`
}
