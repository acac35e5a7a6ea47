// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package validation

import (
	"fmt"
	"net/netip"
	"slices"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/gateway"
)

// Bounds of policy routing: the rules of the main and default tables have higher priority values, and the tables from default
// to local are the kernel's (ip-rule(8)).
const (
	maxRulePriority = 32765
	tableDefault    = 253
	tableLocal      = 255
)

// egress checks the fields for traffic of a subnet that leaves the cluster.
func egress(spec *kubeovnv1.SubnetSpec, cidrs []netip.Prefix) *Problem {
	if _, err := gateway.Parse(spec); err != nil {
		return Problemf(ReasonFieldInvalid, "%v: write nodes with commas between them, each as node or node:address", err)
	}
	if p := natRules(spec.NATOutgoingPolicyRules); p != nil {
		return p
	}
	return externalGateway(spec, cidrs)
}

func natRules(rules []kubeovnv1.NATOutgoingPolicyRule) *Problem {
	for i, r := range rules {
		if r.Action != kubeovnv1.NATOutgoingPolicyNAT && r.Action != kubeovnv1.NATOutgoingPolicyForward {
			return Problemf(ReasonFieldInvalid, "natOutgoingPolicyRules[%d].action %q: must be %s or %s", i, r.Action,
				kubeovnv1.NATOutgoingPolicyNAT, kubeovnv1.NATOutgoingPolicyForward)
		}
		if _, err := gateway.ParseNATRule(r); err != nil {
			return Problemf(ReasonFieldInvalid, "natOutgoingPolicyRules[%d].%v: write addresses and CIDRs with commas between them", i, err)
		}
	}
	return nil
}

// ineffectiveNATRules describes the parts of natOutgoingPolicyRules that match no packet of the subnet.
func ineffectiveNATRules(spec *kubeovnv1.SubnetSpec) []string {
	cidrs, err := ipfamily.ParseCIDRs(spec.CIDRBlock)
	if err != nil {
		return nil // the condition Validated reports it
	}
	var parts []string
	for i, r := range spec.NATOutgoingPolicyRules {
		rule, err := gateway.ParseNATRule(r)
		if err != nil {
			continue
		}
		for _, source := range rule.Sources {
			if !slices.ContainsFunc(cidrs, source.Overlaps) {
				parts = append(parts, fmt.Sprintf("natOutgoingPolicyRules[%d].match.srcIPs %s, which is outside of cidrBlock", i, source))
			}
		}
		if !slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return rule.Concerns(ipfamily.Of(c.Addr())) }) {
			parts = append(parts, fmt.Sprintf("natOutgoingPolicyRules[%d], whose srcIPs and dstIPs have no family of cidrBlock in common", i))
		}
	}
	return parts
}

func externalGateway(spec *kubeovnv1.SubnetSpec, cidrs []netip.Prefix) *Problem {
	if spec.ExternalEgressGateway == "" {
		return nil
	}
	gateways, err := ipfamily.ParseAddrs(spec.ExternalEgressGateway)
	switch {
	case err != nil:
		return Problemf(ReasonFieldInvalid, "externalEgressGateway: %v: write one address of each family, with a comma between them", err)
	case spec.NATOutgoing:
		return Problemf(ReasonFieldInvalid, "externalEgressGateway and natOutgoing exclude each other: set natOutgoing to false, or leave externalEgressGateway out")
	case spec.PolicyRoutingPriority == 0 || spec.PolicyRoutingPriority > maxRulePriority:
		return Problemf(ReasonFieldInvalid, "policyRoutingPriority %d: externalEgressGateway takes one from 1 to %d", spec.PolicyRoutingPriority, maxRulePriority)
	case spec.PolicyRoutingTableID == 0 || spec.PolicyRoutingTableID >= tableDefault && spec.PolicyRoutingTableID <= tableLocal:
		return Problemf(ReasonFieldInvalid, "policyRoutingTableID %d: externalEgressGateway takes the number of a routing table that nothing else uses, not %d to %d",
			spec.PolicyRoutingTableID, tableDefault, tableLocal)
	}
	for _, g := range gateways {
		if slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(g) }) {
			return Problemf(ReasonFieldInvalid, "externalEgressGateway %s is inside of cidrBlock: write the address of a router outside", g)
		}
		if !slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return ipfamily.Of(c.Addr()) == ipfamily.Of(g) }) {
			return Problemf(ReasonFieldInvalid, "externalEgressGateway %s is of a family that cidrBlock %s does not have: leave it out", g, ipfamily.Join(cidrs))
		}
	}
	return nil
}
