// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// ruleIDLength is the length of the rule IDs in a subnet's status, in characters.
const ruleIDLength = 12

// NATRule is a parsed entry of natOutgoingPolicyRules.
type NATRule struct {
	// Sources and Destinations that the rule matches; an empty list matches any.
	Sources, Destinations []netip.Prefix
	// Forward leaves the source address unchanged.
	Forward bool
}

// ParseNATRule parses a rule.
func ParseNATRule(r v1.NATOutgoingPolicyRule) (NATRule, error) {
	out := NATRule{Forward: r.Action == v1.NATOutgoingPolicyForward}
	var err error
	if out.Sources, err = parsePrefixes(r.Match.SrcIPs); err != nil {
		return NATRule{}, fmt.Errorf("match.srcIPs: %w", err)
	}
	if out.Destinations, err = parsePrefixes(r.Match.DstIPs); err != nil {
		return NATRule{}, fmt.Errorf("match.dstIPs: %w", err)
	}
	return out, nil
}

func parsePrefixes(s string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		switch {
		case part == "" && s == "":
		case strings.Contains(part, "/"):
			p, err := ipfamily.ParseCIDR(part)
			if err != nil {
				return nil, err
			}
			out = append(out, p.Masked())
		default:
			a, err := ipfamily.ParseAddr(part)
			if err != nil {
				return nil, err
			}
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return out, nil
}

// Concerns reports whether the rule can match packets of a family.
func (r NATRule) Concerns(f ipfamily.Family) bool {
	has := func(prefixes []netip.Prefix) bool {
		return len(prefixes) == 0 || slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return ipfamily.Of(p.Addr()) == f })
	}
	return has(r.Sources) && has(r.Destinations)
}

// RuleStatus returns the rules of a subnet for its status. The ID derives from subnet and rule, so that it is stable when other
// rules change.
func RuleStatus(s *v1.Subnet) []v1.NATOutgoingPolicyRuleStatus {
	if !s.Spec.NATOutgoing || !Routed(s) {
		return nil
	}
	var out []v1.NATOutgoingPolicyRuleStatus
	seen := map[v1.NATOutgoingPolicyRule]int{}
	for _, r := range s.Spec.NATOutgoingPolicyRules {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%s\x00%d", s.Name, r.Action, r.Match.SrcIPs, r.Match.DstIPs, seen[r]))
		seen[r]++
		out = append(out, v1.NATOutgoingPolicyRuleStatus{RuleID: hex.EncodeToString(sum[:])[:ruleIDLength], NATOutgoingPolicyRule: r})
	}
	return out
}
