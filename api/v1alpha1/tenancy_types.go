// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import kubeovnv1 "github.com/kiln-net/kiln/api/v1"

// Membership defines which namespaces may use custom VPCs, private and external subnets, IPPools with namespaces, security groups and Vips.
// +kubebuilder:validation:Enum=Granted;Open
type Membership string

// Values of Membership.
const (
	MembershipGranted Membership = "Granted"
	MembershipOpen    Membership = "Open"
)

// Tenancy defines how the users of a namespace may use network resources. The defaults are strict. When Kiln takes over
// a cluster, the operator writes the permissions of Kube-OVN into each object that Kube-OVN has served.
type Tenancy struct {
	// membership is Granted or Open. Granted: pods and Services may name only those custom VPCs, private and external subnets,
	// IPPools with namespaces, security groups, Vips and addresses of OvnEips that list their namespace. Open: they may name any of them, as with Kube-OVN.
	// +optional
	// +kubebuilder:default=Granted
	Membership Membership `json:"membership,omitempty"`
	// clusterAccess of custom VPCs whose clusterAccess is empty.
	// +optional
	// +kubebuilder:default=None
	ClusterAccess kubeovnv1.ClusterAccess `json:"clusterAccess,omitempty"`
	// portSecurity of subnets whose portSecurity is empty.
	// +optional
	// +kubebuilder:default=Enforced
	PortSecurity kubeovnv1.PortSecurity `json:"portSecurity,omitempty"`
	// externalIPs is Granted or Open. Granted: adding externalIPs to a Service requires the verb use on externalips.kubeovn.io in its
	// namespace, which cluster administrators have. Open: every user with write access to Services may add them.
	// +optional
	// +kubebuilder:default=Granted
	ExternalIPs ExternalIPs `json:"externalIPs,omitempty"`
	// podLimits are the highest rates of each port of pods, in the subnets that set no rate for a direction. Annotations of pods can only request less.
	// +optional
	PodLimits *kubeovnv1.PodLimits `json:"podLimits,omitempty"`
}

// ExternalIPs defines which users may add externalIPs to Services.
// +kubebuilder:validation:Enum=Granted;Open
type ExternalIPs string

// Values of ExternalIPs.
const (
	ExternalIPsGranted ExternalIPs = "Granted"
	ExternalIPsOpen    ExternalIPs = "Open"
)
