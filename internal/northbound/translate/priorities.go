// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

// This file has every priority and tier that Kiln writes to the northbound database, but for rules of users. The higher priority wins.
// Unless a comment says otherwise the numbers are Kube-OVN's, so that policies and ACLs that users add in between keep their meaning.

// Priorities of the policies on a VPC's router.
const (
	priorityWithin   = 31001 // traffic within an interconnected underlay subnet stays there, also to nodes (Kube-OVN: 30060)
	priorityLocal    = 31000 // traffic to a subnet of the VPC is routed to it; from an underlay subnet to a node: to the physical router
	priorityOverlay  = 30050 // with overlayOnlyRouting, other traffic from such a subnet goes to the physical router
	priorityNode     = 30000 // traffic to a node goes through that node's port
	priorityInto     = 29400 // traffic to an interconnected underlay subnet is routed to it
	priorityServices = 29260 // traffic of a custom VPC to Services goes to the VPC's gateway router (Kiln's)
	priorityNorth    = 29250 // egress traffic of a pod with its own next hop goes there
	// Egress traffic of pods with external addresses goes to the router of the external subnet (Kiln's), unless a route of the user leads to its destination: answers of a port,
	// then traffic of one address, then of a network, a longer prefix first: priorityPrefix plus the length, which is at most 127.
	PriorityRouted  = 29249
	priorityPort    = 29248
	priorityAddress = 29247
	priorityPrefix  = 29119
	priorityFixed   = 29118 // egress traffic of pods with an EgressAddress goes to its router (Kiln's)
	priorityCentral = 29010 // egress traffic of a subnet with gateway nodes goes through them
	priorityEgress  = 29000 // other egress traffic goes through the pod's own node; from an underlay subnet: to the physical router
)

// Priorities of the policies on a VPC's gateway router, which Kube-OVN does not have. Users cannot add any.
const (
	priorityForged  = 3 // drops packets from outside with the router's own address as their source
	priorityPassing = 2 // allows packets to Services, and from subnets with natOutgoing
	priorityRest    = 1 // drops all other packets from the VPC
)

// Tiers of ACLs. The lower one is evaluated first, and what it passes goes to the next (ovn-nb(5), ACL tier).
const (
	TierAdmin    = 1 // cluster-wide policies of administrators
	TierPolicy   = 2 // ACLs of subnets, NetworkPolicies and security groups
	TierBaseline = 3 // baseline policies, and security groups of tier 1
)

// Priorities of ACLs in TierAdmin and TierBaseline.
const (
	// priorityAboveAll is for traffic that no policy may stop: from the pod's own node, from the pod itself through a Service, and answers
	// to health checks. Kube-OVN has no such ACLs.
	priorityAboveAll = 31000
	// PriorityCluster is for the first rule of the cluster-wide policy with the highest precedence. The following rules and policies have
	// lower priorities.
	PriorityCluster = 30000
	// PriorityBaseline is for the first rule of the baseline policy, in TierBaseline.
	PriorityBaseline = 1800
)

// Priorities of ACLs in TierPolicy; those of security groups may be in TierBaseline too. Security groups come before NetworkPolicies, so that groups
// decide about their pods; then come the rules of subnets.
const (
	prioritySecurityRule = 18484 // a security group's rule of priority n has this priority minus n
	priorityDHCP         = 3000  // DHCP requests of isolated pods
	priorityNodeAllow    = 3000  // traffic from nodes to a private subnet
	prioritySecurityBase = 2005  // what pods with security groups need: DHCP, VRRP
	prioritySecuritySame = 2004  // traffic between pods of one security group
	prioritySecurityLog  = 2003  // all other traffic of pods with a security group whose drops are logged (Kiln's)
	prioritySecurityDrop = 2002  // all other traffic of pods with security groups (2003 in Kube-OVN)
	PriorityPolicyAllow  = 2001  // rules of NetworkPolicies
	PriorityPolicyDrop   = 2000  // all other traffic of isolated pods
	priorityEastWest     = 1900  // traffic within a subnet
	priorityPrivateAllow = 1001  // traffic from a private subnet's own addresses, and from the subnets that it allows
	priorityPrivateDrop  = 1000  // all other traffic to a private subnet
)

// priorityLimit is of QoS rules that limit the traffic to and from a pod. Kube-OVN has none on switches.
const priorityLimit = 1000
