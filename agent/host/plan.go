// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kiln-net/kiln/api/v1"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/k8s"
)

// Plan is the desired state of the node's network. It depends on the node, the subnets, the VPCs and the settings only.
type Plan struct {
	// Addresses of ovn0, with the prefix length of the join subnet's CIDR.
	Addresses []netip.Prefix
	Routes    []Route
	Masquerade
	Egress
}

// Masquerade selects the traffic that keeps its source address when it leaves the overlay through this node, and the traffic that is
// translated. The prefixes of each list are disjoint and sorted.
type Masquerade struct {
	// Cluster has all prefixes of the overlay and of Services: traffic to them keeps its source address.
	Cluster []netip.Prefix
	// Outgoing has the subnets whose traffic to all other destinations is translated to the node's address, including the join subnet.
	Outgoing []netip.Prefix
	// Node has the addresses of this node that the overlay routes back to it.
	Node []netip.Prefix
	// Central is the part of Outgoing that leaves through gateway nodes and is always translated.
	Central []netip.Prefix
	// Join is the join subnet, the source of traffic that leaves custom VPCs.
	Join []netip.Prefix
	// SourceNAT has the subnets of Outgoing that are translated to another address than the node's.
	SourceNAT []SourceNAT
	// Policies has the subnets of Outgoing of which only a part of the traffic is translated.
	Policies []Policy
}

// Route is one of the agent's routes, through ovn0.
type Route struct {
	To netip.Prefix
	// Via is invalid for a network that ovn0 is connected to: the join subnet.
	Via netip.Addr
	// Source is the node's own address that kube-ovn-controller has recorded. Policies and private subnets admit it. If it is invalid, the kernel takes
	// the address of ovn0, which they admit, too: the node has no recorded address of the family, or has it no more.
	Source netip.Addr
}

// NewPlan computes the plan. join is the node's port, parsed from the node's annotations; recorded are the node's own addresses in the IP object of the port.
func NewPlan(join v1.PodNetwork, node *corev1.Node, recorded []netip.Addr, subnets []v1.Subnet, services []netip.Prefix) (Plan, error) {
	var plan Plan
	for _, address := range join.Addresses {
		i := slices.IndexFunc(join.CIDRs, func(cidr netip.Prefix) bool { return cidr.Contains(address) })
		if i < 0 {
			return plan, fmt.Errorf("annotations of node %s: address %s is in no CIDR of the join subnet (%v)", node.Name, address, join.CIDRs)
		}
		plan.Addresses = append(plan.Addresses, netip.PrefixFrom(address, join.CIDRs[i].Bits()))
		plan.Routes = append(plan.Routes, Route{To: join.CIDRs[i].Masked()})
	}
	internal := k8s.OwnIPs(node)
	sources := slices.DeleteFunc(slices.Clone(internal), func(a netip.Addr) bool { return !slices.Contains(recorded, a) })
	for _, address := range internal {
		plan.Node = append(plan.Node, netip.PrefixFrom(address, address.BitLen()))
	}
	plan.Cluster, plan.Join = slices.Concat(services, join.CIDRs), disjoint(join.CIDRs)
	// Traffic that leaves a custom VPC has a source address of the join subnet, to which hosts outside have no route.
	plan.Outgoing, plan.Central = slices.Clone(join.CIDRs), slices.Clone(join.CIDRs)
	for i := range subnets {
		subnet := &subnets[i]
		if !routed(subnet, join.LogicalSwitch) {
			continue
		}
		cidrs, err := ipfamily.ParseCIDRs(subnet.Spec.CIDRBlock)
		if err != nil {
			continue // the controller reports it in the subnet's condition
		}
		plan.Cluster = append(plan.Cluster, cidrs...)
		if subnet.Spec.NATOutgoing {
			plan.Outgoing = append(plan.Outgoing, cidrs...)
		}
		plan.Routes = append(plan.Routes, routesTo(cidrs, join.Gateways, internal, sources)...)
	}
	plan.addEgress(node, subnets)
	plan.Cluster, plan.Outgoing, plan.Node = disjoint(plan.Cluster), disjoint(plan.Outgoing), disjoint(plan.Node)
	return plan, nil
}

// routed reports whether the node reaches a subnet through ovn0: the subnet is an overlay subnet of the default VPC and not the join
// subnet. A subnet that is being deleted counts until its addresses are free.
func routed(subnet *v1.Subnet, join string) bool {
	return subnet.Name != join && gateway.Routed(subnet)
}

// routesTo skips a CIDR that contains an address of the node itself: with such a route the node would lose its own network.
func routesTo(cidrs []netip.Prefix, gateways, node, sources []netip.Addr) []Route {
	var out []Route
	for _, cidr := range cidrs {
		gateway := ofFamily(gateways, cidr)
		if !gateway.IsValid() || slices.ContainsFunc(node, cidr.Contains) {
			continue
		}
		out = append(out, Route{To: cidr.Masked(), Via: gateway, Source: ofFamily(sources, cidr)})
	}
	return out
}

// ofFamily returns the first address of the CIDR's family; invalid if there is none.
func ofFamily(addresses []netip.Addr, cidr netip.Prefix) netip.Addr {
	for _, address := range addresses {
		if ipfamily.Of(address) == ipfamily.Of(cidr.Addr()) {
			return address
		}
	}
	return netip.Addr{}
}

// disjoint sorts prefixes and drops those within another one. If two prefixes overlap, one contains the other.
func disjoint(prefixes []netip.Prefix) []netip.Prefix {
	var sorted []netip.Prefix
	for _, p := range prefixes {
		sorted = append(sorted, p.Masked())
	}
	slices.SortFunc(sorted, netip.Prefix.Compare)
	out := sorted[:0]
	for _, p := range sorted {
		if len(out) == 0 || !out[len(out)-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}
