// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

// Annotation is the name of an annotation without its prefix. Every one exists once per network attachment: the prefix is
// `ovn.kubernetes.io/` for the pod's first network and `<provider>.kubernetes.io/` for any other.
type Annotation string

// ProviderOVN is the provider of every pod's first network.
const ProviderOVN = "ovn"

// AnnotationDomain follows the provider in the keys of annotations.
const AnnotationDomain = ".kubernetes.io"

// Key is the annotation's key for the pod's first network, and for nodes, namespaces and services.
func (a Annotation) Key() string { return a.For(ProviderOVN) }

// For is the annotation's key for a provider.
func (a Annotation) For(provider string) string { return provider + AnnotationDomain + "/" + string(a) }

// Annotations of pods and nodes. Those that both users and the controller write are requests until AnnotationAllocated is "true"
// for the same pod, and results from then on.
const (
	AnnotationAllocated     Annotation = "allocated"       // "true": the port is in the northbound database
	AnnotationRouted        Annotation = "routed"          // "true": its policies and routes are, too
	AnnotationPodUID        Annotation = "pod_uid"         // the UID of the pod that the results are for
	AnnotationIPAddress     Annotation = "ip_address"      // user and controller: addresses, one per family, with a comma between them
	AnnotationMACAddress    Annotation = "mac_address"     // user and controller
	AnnotationIPFamily      Annotation = "ip_family"       // user: ipv4 or ipv6, one family of a dual-stack subnet
	AnnotationIPPool        Annotation = "ip_pool"         // user: IPPools with commas, or addresses to choose from (PodRequest.Pools, Choices)
	AnnotationLogicalSwitch Annotation = "logical_switch"  // user and controller: the subnet; of a namespace: its subnets, with commas
	AnnotationLogicalRouter Annotation = "logical_router"  // the VPC
	AnnotationCIDR          Annotation = "cidr"            // the subnet's CIDRs; of a namespace: those of its subnets, with semicolons
	AnnotationGateway       Annotation = "gateway"         // the subnet's gateways
	AnnotationMTU           Annotation = "mtu"             // the subnet's, in bytes; absent: the agent's
	AnnotationPodNICType    Annotation = "pod_nic_type"    // how the port reaches the pod
	AnnotationRoutes        Annotation = "routes"          // user: JSON list of routes in the pod, [{"dst":"…","gw":"…"}]
	AnnotationPortSecurity  Annotation = "port_security"   // user: "true" drops what the pod sends from other addresses than its own
	AnnotationPortVips      Annotation = "port_vips"       // user: addresses that the pod shares with others, with commas between them
	AnnotationLayer2Forward Annotation = "layer2_forward"  // user: "true" sends the pod what is for MAC addresses that no port has
	AnnotationNorthGateway  Annotation = "north_gateway"   // user: next hops, one per family, of what leaves the VPC from the pod
	AnnotationDefaultRoute  Annotation = "default_route"   // user: "false" leaves the pod without a default route through the subnet's gateways
	AnnotationDHCPv4        Annotation = "dhcp-v4-options" // user: options of the DHCP answers to the pod, over those of its subnet
	AnnotationDHCPv6        Annotation = "dhcp-v6-options" // user: the same of DHCPv6
	AnnotationMachine       Annotation = "virtualmachine"  // the machine of KubeVirt whose port the pod's is
	AnnotationVip           Annotation = "vip"             // user: the Vip whose addresses the pod has for its own
	AnnotationAAPs          Annotation = "aaps"            // user: Vips whose addresses the pod shares with others, with commas between them
	AnnotationGroups        Annotation = "security_groups" // user: SecurityGroups of the pod, with commas between them
	AnnotationExcludeIPs    Annotation = "exclude_ips"     // of a namespace: excludeIps of its subnets, with semicolons
	AnnotationPortName      Annotation = "port_name"       // of a node: its logical switch port
	AnnotationChassis       Annotation = "chassis"         // of a node: its OVS system-id
	AnnotationNodeAddresses Annotation = "node_addresses"  // of a node's IP object: the node's own addresses, with commas between them
	// AnnotationStatusAddresses is on a node's IP object: every IP address in the node's status, of any type, with commas between them.
	AnnotationStatusAddresses Annotation = "status_addresses"
)

// ResultAnnotations returns the annotations of a pod that only kube-ovn-controller changes, from the pod's creation on.
func ResultAnnotations() []Annotation {
	return []Annotation{
		AnnotationPodUID, AnnotationAllocated, AnnotationRouted, AnnotationCIDR, AnnotationGateway, AnnotationLogicalRouter, AnnotationMTU,
		AnnotationPodNICType,
	}
}

// AllocatedAnnotations returns the annotations of a pod that are requests of users until the pod's network is allocated
// (PodNetwork.IsFor), and that only kube-ovn-controller changes from then on.
func AllocatedAnnotations() []Annotation {
	return []Annotation{AnnotationIPAddress, AnnotationMACAddress, AnnotationLogicalSwitch, AnnotationMachine}
}

// Annotations of Services.
const (
	// AnnotationVpc names the VPC whose pods reach a Service. AnnotationLogicalRouter, which users of Kube-OVN set, goes before it.
	AnnotationVpc Annotation = "vpc"

	// AnnotationHealthCheck "false", of a SwitchLBRule, has its endpoints served without checks.
	AnnotationHealthCheck Annotation = "service_health_check"

	// Of a NetworkPolicy.
	AnnotationEnableLog   Annotation = "enable_log"                 // user: "true" logs packets
	AnnotationLogActions  Annotation = "log_acl_actions"            // user: allow, drop or both with a comma; absent: drop
	AnnotationLogRate     Annotation = "acl_log_meter_rate"         // user: packets per second that a rule logs on a node
	AnnotationEnforcement Annotation = "network_policy_enforcement" // user: lax drops TCP, UDP and SCTP only
	AnnotationPolicyFor   Annotation = "network_policy_for"         // user: networks, with commas between them; absent: ovn
)

// PodNICTypeVeth is the one way a port reaches a pod so far: a pair of virtual Ethernet devices.
const PodNICTypeVeth = "veth-pair"
