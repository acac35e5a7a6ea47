// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/gateway"
)

// Egress is this node's configuration as a gateway of subnets, in addition to Masquerade.
type Egress struct {
	// Gateway reports whether the node may be the centralized gateway of a subnet.
	Gateway bool
	// Claims are the egress addresses that only this node uses; it answers ARP and neighbour requests for them.
	Claims []netip.Addr
	// Forwarded are the addresses of EgressAddresses on this node; it answers ARP and neighbour requests for them, and forwards packets to OVN.
	Forwarded []netip.Addr
	// Elsewhere are the addresses of EgressAddresses on other nodes; it does not answer for them.
	Elsewhere []netip.Addr
	// External are the routes through external gateways.
	External []External
}

// External routes traffic from a prefix to an external gateway, through a policy rule and its own routing table.
type External struct {
	From     netip.Prefix
	Via      netip.Addr
	Priority int
	Table    int
}

// SourceNAT is the source address to which traffic from a prefix is translated.
type SourceNAT struct {
	From netip.Prefix
	To   netip.Addr
}

// Policy selects the traffic of a subnet that is translated. Traffic that matches no rule is translated.
type Policy struct {
	Subnet string
	From   []netip.Prefix
	Rules  []gateway.NATRule
}

// addEgress adds the configuration for the subnets whose traffic may leave through this node, oldest first. CIDRs of subnets may overlap
// until the controller has validated them; then the oldest subnet keeps its CIDR.
func (p *Plan) addEgress(node *corev1.Node, subnets []v1.Subnet) {
	var list []*v1.Subnet
	for i := range subnets {
		if s := &subnets[i]; gateway.Routed(s) {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *v1.Subnet) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	var taken []netip.Prefix
	for _, s := range list {
		cidrs, err := ipfamily.ParseCIDRs(s.Spec.CIDRBlock)
		spec, specErr := gateway.Parse(&s.Spec)
		if err != nil || specErr != nil {
			continue // the controller reports it in the subnet's condition
		}
		cidrs = slices.DeleteFunc(cidrs, func(c netip.Prefix) bool { return slices.ContainsFunc(taken, c.Overlaps) })
		taken = append(taken, cidrs...)
		if len(cidrs) == 0 {
			continue
		}
		central := gateway.Centralized(s)
		here := spec.Includes(node.Name, node.Labels)
		p.Gateway = p.Gateway || central && here
		if gateway.UsesTable(s) && (!central || here) && gateway.TableConflict(s, list) == nil {
			p.addExternal(s, cidrs)
		}
		if s.Spec.NATOutgoing && len(s.Spec.NATOutgoingPolicyRules) > 0 {
			p.Policies = append(p.Policies, policyOf(s, cidrs))
		}
		if s.Spec.NATOutgoing && central && len(s.Spec.NATOutgoingPolicyRules) == 0 {
			p.Central = append(p.Central, cidrs...)
		}
		if s.Spec.NATOutgoing && central {
			p.addEgressIPs(spec, node.Name, cidrs)
		}
	}
	p.Central = disjoint(p.Central)
	slices.SortFunc(p.Claims, netip.Addr.Compare)
	p.Claims = slices.Compact(p.Claims)
}

func (p *Plan) addExternal(s *v1.Subnet, cidrs []netip.Prefix) {
	gateways, _ := ipfamily.ParseAddrs(s.Spec.ExternalEgressGateway)
	for _, cidr := range cidrs {
		if via := ofFamily(gateways, cidr); via.IsValid() {
			p.External = append(p.External, External{
				From: cidr.Masked(), Via: via, Priority: int(s.Spec.PolicyRoutingPriority), Table: int(s.Spec.PolicyRoutingTableID),
			})
		}
	}
}

func (p *Plan) addEgressIPs(spec gateway.Spec, node string, cidrs []netip.Prefix) {
	for _, cidr := range cidrs {
		ip := ofFamily(spec.EgressIPs(node), cidr)
		if !ip.IsValid() {
			continue
		}
		p.SourceNAT = append(p.SourceNAT, SourceNAT{From: cidr.Masked(), To: ip})
		if !spec.Shared(ip) {
			p.Claims = append(p.Claims, ip)
		}
	}
}

// policyOf skips rules that cannot be parsed; the controller reports them in the subnet's condition.
func policyOf(s *v1.Subnet, cidrs []netip.Prefix) Policy {
	policy := Policy{Subnet: s.Name}
	for _, cidr := range cidrs {
		policy.From = append(policy.From, cidr.Masked())
	}
	for _, r := range s.Spec.NATOutgoingPolicyRules {
		if rule, err := gateway.ParseNATRule(r); err == nil {
			policy.Rules = append(policy.Rules, rule)
		}
	}
	return policy
}
