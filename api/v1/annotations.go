// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"fmt"
	"strings"
	"time"
)

// Annotation is the name of an annotation without its prefix. Each network attachment has its own annotations: the prefix is
// `ovn.kubernetes.io/` for the pod's first network and `<provider>.kubernetes.io/` for any other.
type Annotation string

// ProviderOVN is the provider of a pod's first network.
const ProviderOVN = "ovn"

// AnnotationDomain is the suffix of the provider in annotation keys.
const AnnotationDomain = ".kubernetes.io"

// Key returns the annotation's key for the pod's first network, and for objects of other kinds.
func (a Annotation) Key() string { return a.For(ProviderOVN) }

// For returns the annotation's key for a provider.
func (a Annotation) For(provider string) string { return provider + AnnotationDomain + "/" + string(a) }

// Keys returns the keys of annotations for the pod's first network, and for objects of other kinds.
func Keys(annotations []Annotation) []string {
	keys := make([]string, len(annotations))
	for i, a := range annotations {
		keys[i] = a.Key()
	}
	return keys
}

// Names of all annotations. annotationTable defines the objects that have them, their roles and their valid values.
const (
	AnnotationAAPs             Annotation = "aaps"                       // Vips whose addresses the pod shares with others, separated by commas
	AnnotationAllocated        Annotation = "allocated"                  // "true": the port is in the northbound database
	AnnotationBGP              Annotation = "bgp"                        // how kube-ovn-speaker announces the object (Announcement)
	AnnotationCIDR             Annotation = "cidr"                       // CIDRs of the subnet; on a namespace: of its subnets, separated by semicolons
	AnnotationChassis          Annotation = "chassis"                    // the OVS system-id
	AnnotationDHCPv4           Annotation = "dhcp-v4-options"            // options of DHCP answers to the pod; they override the options of its subnet
	AnnotationDHCPv6           Annotation = "dhcp-v6-options"            // the same for DHCPv6
	AnnotationDefaultRoute     Annotation = "default_route"              // "false" leaves the pod without a default route through the subnet's gateways
	AnnotationEgressBurst      Annotation = "egress_burst"               // bits that the pod may send at once after a pause, in Mbit
	AnnotationEgressRate       Annotation = "egress_rate"                // highest rate of traffic from the pod, in Mbit/s
	AnnotationEip              Annotation = "eip"                        // addresses of an OvnEip that the pod has outside, one per family, separated by a comma
	AnnotationEnableLog        Annotation = "enable_log"                 // "true" logs packets
	AnnotationEnforcement      Annotation = "network_policy_enforcement" // lax drops TCP, UDP and SCTP only
	AnnotationExcludeIPs       Annotation = "exclude_ips"                // excludeIps of the namespace's subnets, separated by semicolons
	AnnotationGateway          Annotation = "gateway"                    // the subnet's gateways
	AnnotationClaimedAddresses Annotation = "claimed_addresses"          // addresses that the node reported first, separated by commas
	AnnotationGroups           Annotation = "security_groups"            // SecurityGroups of the pod, separated by commas
	AnnotationFlush            Annotation = "flush_connections"          // former translations whose connections the node ends (ConnectionFlush)
	AnnotationFlushed          Annotation = "flushed_connections"        // IDs of the requests of flush_connections that the node has done, separated by commas
	AnnotationHealthCheck      Annotation = "service_health_check"       // "false" turns off health checks of the endpoints of a rule
	AnnotationIPAddress        Annotation = "ip_address"                 // addresses, one per family, separated by a comma
	AnnotationIPFamily         Annotation = "ip_family"                  // ipv4 or ipv6, one family of a dual-stack subnet
	AnnotationIPPool           Annotation = "ip_pool"                    // IPPools with commas, or addresses to choose from (PodRequest.Pools, Choices); on a namespace: its IPPools
	AnnotationIngressBurst     Annotation = "ingress_burst"              // bits that the pod may receive at once after a pause, in Mbit
	AnnotationIngressRate      Annotation = "ingress_rate"               // highest rate of traffic to the pod, in Mbit/s
	AnnotationJitter           Annotation = "jitter"                     // variation of latency, in ms
	AnnotationKeptGroups       Annotation = "kept_security_groups"       // SecurityGroups of the pod that listed its namespace when it joined them, separated by commas
	AnnotationLatency          Annotation = "latency"                    // delay of traffic to the pod, in ms
	AnnotationLayer2Forward    Annotation = "layer2_forward"             // "true" sends the pod the frames to unknown MAC addresses
	AnnotationLimit            Annotation = "limit"                      // packets to the pod that may wait
	AnnotationLogActions       Annotation = "log_acl_actions"            // allow, drop or both with a comma; absent: drop
	AnnotationLogDropsUntil    Annotation = "log_drops_until"            // time (RFC 3339) until which dropped packets are logged, at most MaxLogDrops ahead
	AnnotationLogRate          Annotation = "acl_log_meter_rate"         // packets per second that a policy adds to the logs of its namespace on a node
	AnnotationLogicalRouter    Annotation = "logical_router"             // the VPC; on a Service it takes precedence over AnnotationVpc
	AnnotationLogicalSwitch    Annotation = "logical_switch"             // the subnet; on a namespace: its subnets, separated by commas
	AnnotationLoss             Annotation = "loss"                       // part of the packets to the pod that are lost, in percent
	AnnotationMACAddress       Annotation = "mac_address"                // the MAC address
	AnnotationMTU              Annotation = "mtu"                        // MTU of the subnet in bytes; absent: the agent chooses
	AnnotationMachine          Annotation = "virtualmachine"             // the KubeVirt virtual machine that owns the pod's port
	AnnotationMirror           Annotation = "mirror"                     // "true" copies the packets of the pod to mirror0 of its node
	AnnotationNodeAddresses    Annotation = "node_addresses"             // addresses of the node itself that are in use, separated by commas
	AnnotationNorthGateway     Annotation = "north_gateway"              // next hops, one per family, for traffic of the pod that leaves the VPC
	AnnotationVlanID           Annotation = "vlan_id"                    // tag of an underlay subnet's VLAN, 0 without one
	AnnotationProviderNetwork  Annotation = "provider_network"           // physical network of an underlay subnet
	AnnotationPodNICType       Annotation = "pod_nic_type"               // type of device that connects the pod to the port
	AnnotationPodUID           Annotation = "pod_uid"                    // the UID of the pod that the results are for
	AnnotationPolicyFor        Annotation = "network_policy_for"         // networks, separated by commas; absent: ovn
	AnnotationPortName         Annotation = "port_name"                  // the node's logical switch port
	AnnotationPortSecurity     Annotation = "port_security"              // "true" drops packets that the pod sends from addresses other than its own
	AnnotationPortVips         Annotation = "port_vips"                  // addresses that the pod shares with others, separated by commas
	AnnotationRouted           Annotation = "routed"                     // "true": policies and routes of the port are in the northbound database, too
	AnnotationRoutes           Annotation = "routes"                     // JSON list of routes in the pod, [{"dst":"…","gw":"…"}]
	AnnotationSnat             Annotation = "snat"                       // addresses of an OvnEip from which packets of the pod come outside, one per family, separated by a comma
	AnnotationVip              Annotation = "vip"                        // the Vip whose addresses the pod uses as its own
	AnnotationVpc              Annotation = "vpc"                        // the custom VPC of the Service's endpoints
	AnnotationVpcEip           Annotation = "vpc_eip"                    // the OvnEip of a rule
)

// MaxLogDrops is the longest time from now to the value of AnnotationLogDropsUntil.
const MaxLogDrops = time.Hour

// ParseLogDrops returns the time from now to the value of AnnotationLogDropsUntil; 0 without the annotation, and if the time has passed.
func ParseLogDrops(annotations map[string]string, now time.Time) (time.Duration, error) {
	value := strings.TrimSpace(annotations[AnnotationLogDropsUntil.Key()])
	if value == "" {
		return 0, nil
	}
	until, err := time.Parse(time.RFC3339, value)
	left := until.Sub(now)
	if err != nil || left > MaxLogDrops {
		return 0, fmt.Errorf("annotation %s is %.40q: write a time that is at most %s ahead, such as 2026-11-30T16:00:00Z", AnnotationLogDropsUntil.Key(), value, MaxLogDrops)
	}
	return max(left, 0), nil
}

// PodNICTypeVeth is the only supported type of device: a pair of virtual Ethernet devices.
const PodNICTypeVeth = "veth-pair"
