// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gateway determines the nodes through which the traffic of a subnet leaves the cluster: the nodes in its spec, the fit
// ones among them, and the nodes that carry the traffic. The controllers route to these nodes, and agents prepare every node
// that can become one.
package gateway

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// Spec is the centralized gateway in a subnet's spec.
type Spec struct {
	// Nodes by name, in the user's order. If there are any, Selectors are ignored.
	Nodes []Node
	// Selectors of nodes: a node that matches any of them is included.
	Selectors []labels.Selector
	// ECMP spreads traffic over all nodes instead of sending it through the first one.
	ECMP bool
}

// Node is a gateway node by name.
type Node struct {
	Name string
	// EgressIPs are the source addresses of traffic that leaves through this node, at most one per family. If empty, the node's own
	// addresses are used.
	EgressIPs []netip.Addr
}

// Parse parses the centralized gateway of a subnet. gatewayNode is a comma-separated list of `node` or `node:address`; a node
// may occur once per family of its addresses.
func Parse(spec *v1.SubnetSpec) (Spec, error) {
	out := Spec{ECMP: spec.EnableECMP}
	for entry := range strings.SplitSeq(spec.GatewayNode, ",") {
		if err := out.add(strings.TrimSpace(entry)); err != nil {
			return Spec{}, fmt.Errorf("gatewayNode: %w", err)
		}
	}
	for i := range spec.GatewayNodeSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&spec.GatewayNodeSelectors[i])
		if err != nil {
			return Spec{}, fmt.Errorf("gatewayNodeSelectors[%d]: %w", i, err)
		}
		out.Selectors = append(out.Selectors, selector)
	}
	return out, nil
}

func (s *Spec) add(entry string) error {
	name, address, hasAddress := strings.Cut(entry, ":")
	name = strings.TrimSpace(name)
	if name == "" {
		if hasAddress {
			return fmt.Errorf("%q names no node", entry)
		}
		return nil
	}
	i := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.Name == name })
	if i < 0 {
		i, s.Nodes = len(s.Nodes), append(s.Nodes, Node{Name: name})
	}
	if !hasAddress {
		return nil
	}
	ip, err := ipfamily.ParseAddr(strings.TrimSpace(address))
	if err != nil {
		return fmt.Errorf("egress address of node %s: %w", name, err)
	}
	node := &s.Nodes[i]
	if slices.ContainsFunc(node.EgressIPs, func(a netip.Addr) bool { return ipfamily.Of(a) == ipfamily.Of(ip) }) {
		return fmt.Errorf("node %s has two egress addresses of one family", name)
	}
	node.EgressIPs = append(node.EgressIPs, ip)
	return nil
}

// Empty reports whether the spec cannot include any node.
func (s Spec) Empty() bool { return len(s.Nodes) == 0 && len(s.Selectors) == 0 }

// Includes reports whether the spec includes a node.
func (s Spec) Includes(name string, nodeLabels map[string]string) bool {
	if len(s.Nodes) > 0 {
		return slices.ContainsFunc(s.Nodes, func(n Node) bool { return n.Name == name })
	}
	return slices.ContainsFunc(s.Selectors, func(l labels.Selector) bool { return l.Matches(labels.Set(nodeLabels)) })
}

// EgressIPs returns the egress addresses of a node.
func (s Spec) EgressIPs(name string) []netip.Addr {
	for _, n := range s.Nodes {
		if n.Name == name {
			return n.EgressIPs
		}
	}
	return nil
}

// Shared reports whether several nodes have this egress address. Nodes cannot answer ARP or ND for such an address themselves.
func (s Spec) Shared(ip netip.Addr) bool {
	count := 0
	for _, n := range s.Nodes {
		if slices.Contains(n.EgressIPs, ip) {
			count++
		}
	}
	return count > 1
}

// Routed reports whether the traffic of a subnet leaves through nodes. This is true for overlay subnets of the default VPC, and
// underlay subnets with a logical gateway, except for the join subnet.
func Routed(s *v1.Subnet) bool {
	return s.Name != v1.JoinSubnet && !s.Spec.PhysicalGateway() && (s.Spec.Provider == "" || s.Spec.Provider == v1.ProviderOVN) &&
		(s.Spec.Vpc == "" || s.Spec.Vpc == v1.DefaultVpc)
}

// Centralized reports whether the traffic of a subnet leaves through gateway nodes.
func Centralized(s *v1.Subnet) bool { return Routed(s) && s.Spec.GatewayType == v1.GatewayCentralized }

// TableConflict returns the subnet that already has the routing table of s's external gateway, or nil. Of two subnets with the
// same table, the younger one has the conflict.
func TableConflict(s *v1.Subnet, others []*v1.Subnet) *v1.Subnet {
	if !UsesTable(s) {
		return nil
	}
	for _, other := range others {
		if other.Name != s.Name && UsesTable(other) && other.Spec.PolicyRoutingTableID == s.Spec.PolicyRoutingTableID && older(other, s) {
			return other
		}
	}
	return nil
}

// UsesTable reports whether nodes keep a routing table for a subnet.
func UsesTable(s *v1.Subnet) bool {
	return Routed(s) && s.DeletionTimestamp == nil && s.Spec.ExternalEgressGateway != "" && !s.Spec.NATOutgoing &&
		s.Spec.PolicyRoutingTableID != 0 && s.Spec.PolicyRoutingPriority != 0
}

func older(a, b *v1.Subnet) bool {
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c < 0
	}
	return a.Name < b.Name
}
