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

// Key is the annotation's key for the pod's first network, and for objects of other kinds.
func (a Annotation) Key() string { return a.For(ProviderOVN) }

// For is the annotation's key for a provider.
func (a Annotation) For(provider string) string { return provider + AnnotationDomain + "/" + string(a) }

// Keys returns the keys of annotations for the pod's first network, and for objects of other kinds.
func Keys(annotations []Annotation) []string {
	keys := make([]string, len(annotations))
	for i, a := range annotations {
		keys[i] = a.Key()
	}
	return keys
}

// The names of all annotations. The table says on which objects each of them is, who writes it and which values are valid.
const (
	AnnotationAAPs            Annotation = "aaps"                       // Vips whose addresses the pod shares with others, with commas between them
	AnnotationAllocated       Annotation = "allocated"                  // "true": the port is in the northbound database
	AnnotationCIDR            Annotation = "cidr"                       // the subnet's CIDRs; of a namespace: those of its subnets, with semicolons
	AnnotationChassis         Annotation = "chassis"                    // the OVS system-id
	AnnotationDHCPv4          Annotation = "dhcp-v4-options"            // options of the DHCP answers to the pod, over those of its subnet
	AnnotationDHCPv6          Annotation = "dhcp-v6-options"            // the same of DHCPv6
	AnnotationDefaultRoute    Annotation = "default_route"              // "false" leaves the pod without a default route through the subnet's gateways
	AnnotationEnableLog       Annotation = "enable_log"                 // "true" logs packets
	AnnotationEnforcement     Annotation = "network_policy_enforcement" // lax drops TCP, UDP and SCTP only
	AnnotationExcludeIPs      Annotation = "exclude_ips"                // excludeIps of the namespace's subnets, with semicolons
	AnnotationGateway         Annotation = "gateway"                    // the subnet's gateways
	AnnotationGroups          Annotation = "security_groups"            // SecurityGroups of the pod, with commas between them
	AnnotationHealthCheck     Annotation = "service_health_check"       // "false": the endpoints of a rule are served without checks
	AnnotationIPAddress       Annotation = "ip_address"                 // addresses, one per family, with a comma between them
	AnnotationIPFamily        Annotation = "ip_family"                  // ipv4 or ipv6, one family of a dual-stack subnet
	AnnotationIPPool          Annotation = "ip_pool"                    // IPPools with commas, or addresses to choose from (PodRequest.Pools, Choices)
	AnnotationLayer2Forward   Annotation = "layer2_forward"             // "true" sends the pod the frames to unknown MAC addresses
	AnnotationLogActions      Annotation = "log_acl_actions"            // allow, drop or both with a comma; absent: drop
	AnnotationLogRate         Annotation = "acl_log_meter_rate"         // packets per second that a rule logs on a node
	AnnotationLogicalRouter   Annotation = "logical_router"             // the VPC; of a Service it takes precedence over AnnotationVpc
	AnnotationLogicalSwitch   Annotation = "logical_switch"             // the subnet; of a namespace: its subnets, with commas
	AnnotationMACAddress      Annotation = "mac_address"                // the MAC address
	AnnotationMTU             Annotation = "mtu"                        // the subnet's, in bytes; absent: the agent's
	AnnotationMachine         Annotation = "virtualmachine"             // the machine of KubeVirt whose port the pod's is
	AnnotationNodeAddresses   Annotation = "node_addresses"             // the node's own addresses, with commas between them
	AnnotationNorthGateway    Annotation = "north_gateway"              // next hops, one per family, of what leaves the VPC from the pod
	AnnotationPodNICType      Annotation = "pod_nic_type"               // how the port reaches the pod
	AnnotationPodUID          Annotation = "pod_uid"                    // the UID of the pod that the results are for
	AnnotationPolicyFor       Annotation = "network_policy_for"         // networks, with commas between them; absent: ovn
	AnnotationPortName        Annotation = "port_name"                  // the node's logical switch port
	AnnotationPortSecurity    Annotation = "port_security"              // "true" drops what the pod sends from other addresses than its own
	AnnotationPortVips        Annotation = "port_vips"                  // addresses that the pod shares with others, with commas between them
	AnnotationRouted          Annotation = "routed"                     // "true": policies and routes of the port are in the northbound database, too
	AnnotationRoutes          Annotation = "routes"                     // JSON list of routes in the pod, [{"dst":"…","gw":"…"}]
	AnnotationStatusAddresses Annotation = "status_addresses"           // every IP address in the node's status, with commas between them
	AnnotationVip             Annotation = "vip"                        // the Vip whose addresses the pod has for its own
	AnnotationVpc             Annotation = "vpc"                        // the VPC of the Service's endpoints, where that is a custom one
)

// PodNICTypeVeth is the one way a port reaches a pod so far: a pair of virtual Ethernet devices.
const PodNICTypeVeth = "veth-pair"
