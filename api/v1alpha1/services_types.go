// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

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
