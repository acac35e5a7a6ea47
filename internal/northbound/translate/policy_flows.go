// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import "github.com/kiln-net/kiln/internal/ipfamily"

// Weights of the parts of a rule, in terms of OVN's matches. Each term of an ACL is two flows: northd makes one logical flow for new
// connections and one for established connections.
const (
	flowsOfTerm = 2
	// termsOfSet is how many terms a set of pods counts for: the pods of a policy that are on one node, and the addresses of a set of peers. It
	// is fixed, since a policy must not exceed a bound because other users create pods.
	termsOfSet = 8
	// termsOfRange is the largest number of masks that a range of ports takes: two for each bit but the last of 16.
	termsOfRange = 30
)

// Flows estimates how many OpenFlow flows the rule costs on a node that has pods which the policy is about. It is an upper bound as long as
// six of them are there, and no set of peers has more than six pods (TestFlowsOfPolicyRules). The terms of one ACL add up:
// ovn-controller makes conjunctions of them (ovs-fields(7)), once for each protocol.
func (r PolicyRule) Flows() int {
	protocols, ports := map[string]bool{}, 0
	for _, p := range r.Ports {
		protocols[p.Protocol] = true
		if p.Last > p.First {
			ports += termsOfRange
		} else {
			ports++
		}
	}
	terms := 0
	for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
		peers := termsOfSet * len(r.Sets)
		for _, network := range r.Networks {
			if ipfamily.Of(network.Addr()) == family {
				peers++
			}
		}
		if r.Any || peers > 0 {
			terms += max(1, len(protocols))*(termsOfSet*(1+len(r.To))+peers) + ports
		}
	}
	return flowsOfTerm * terms
}
