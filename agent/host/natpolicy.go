// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/gateway"
)

// policyChain returns the name of the chain of a subnet's rules. It is a hash, because a subnet's name may be longer than nftables allows
// for a chain.
func policyChain(subnet string) string {
	sum := sha256.Sum256([]byte(subnet))
	return policyPrefix + hex.EncodeToString(sum[:6])
}

func policyChains(policies []Policy) []string {
	names := make([]string, 0, len(policies))
	for _, p := range policies {
		names = append(names, policyChain(p.Subnet))
	}
	return names
}

// staleChains returns the chains of subnets that no longer have rules.
func staleChains(ctx context.Context, nft knftables.Interface, policies []Policy) ([]string, error) {
	names, err := nft.List(ctx, "chains")
	if err != nil && !knftables.IsNotFound(err) {
		return nil, fmt.Errorf("list chains of nftables table %s: %w", NATTable, err)
	}
	wanted := policyChains(policies)
	return slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, policyPrefix) || slices.Contains(wanted, name)
	}), nil
}

// setMaps writes the maps of one family.
func setMaps(tx *knftables.Transaction, m Masquerade, f spelling) {
	policies, egress := mapPolicies+f.suffix, mapEgress+f.suffix
	for _, m := range []knftables.Map{{Name: policies, Type: f.value + " : verdict"}, {Name: egress, Type: f.value + " : " + f.value}} {
		m.Flags = []knftables.SetFlag{knftables.IntervalFlag}
		tx.Add(&m)
		tx.Flush(&knftables.Map{Name: m.Name})
	}
	add := func(name string, from netip.Prefix, value string) {
		if ipfamily.Of(from.Addr()) == f.family {
			tx.Add(&knftables.Element{Map: name, Key: []string{from.String()}, Value: []string{value}})
		}
	}
	for _, p := range m.Policies {
		for _, from := range p.From {
			add(policies, from, "jump "+policyChain(p.Subnet))
		}
	}
	for _, s := range m.SourceNAT {
		add(egress, s.From, s.To.String())
	}
}

// setOutgoingChains writes the chains for traffic that leaves subnets with natOutgoing: each subnet's rules in order, then translation of
// traffic that matches none of them.
func setOutgoingChains(tx *knftables.Transaction, policies []Policy) {
	add := func(chain, text, why string) {
		r := &knftables.Rule{Chain: chain, Rule: text}
		if why != "" {
			r.Comment = &why
		}
		tx.Add(r)
	}
	for _, f := range families {
		add(chainOutgoing, knftables.Concat(f.key, "saddr vmap @"+mapPolicies+f.suffix), "")
		add(chainTranslate, knftables.Concat("snat", f.key, "to", f.key, "saddr map @"+mapEgress+f.suffix, "fully-random"), "")
	}
	add(chainOutgoing, "goto "+chainTranslate, "")
	add(chainTranslate, "masquerade fully-random", "")
	for _, p := range policies {
		chain := policyChain(p.Subnet)
		for i, r := range p.Rules {
			for _, f := range families {
				if r.Concerns(f.family) {
					add(chain, natRule(r, f), fmt.Sprintf("natOutgoingPolicyRules[%d] of subnet %.40s", i, p.Subnet))
				}
			}
		}
	}
}

// natRule returns the text of one rule in one family.
func natRule(r gateway.NATRule, f spelling) string {
	parts := []any{"meta nfproto", nfproto[f.key]}
	for _, side := range []struct {
		name     string
		prefixes []netip.Prefix
	}{{"saddr", r.Sources}, {"daddr", r.Destinations}} {
		var list []string
		for _, p := range disjoint(side.prefixes) {
			if ipfamily.Of(p.Addr()) == f.family {
				list = append(list, p.String())
			}
		}
		if len(list) > 0 {
			parts = append(parts, f.key, side.name, "{", strings.Join(list, ", "), "}")
		}
	}
	if r.Forward {
		return knftables.Concat(append(parts, "accept")...)
	}
	return knftables.Concat(append(parts, "goto", chainTranslate)...)
}
