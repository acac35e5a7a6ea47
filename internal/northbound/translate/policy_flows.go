// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import "github.com/kiln-net/kiln/internal/address/ipfamily"

// Weights of the parts of a rule, in terms of OVN's matches. Each term of an ACL becomes two flows: northd makes one logical
// flow for new connections and one for established connections.
const (
	flowsOfTerm = 2
	// termsOfSet is the assumed number of terms of a set of pods: a policy's subjects on one node, or the addresses of a set of
	// peers. It is fixed, because a policy must not exceed its bound when other users create pods.
	termsOfSet = 8
	// termsOfRange is the largest number of masks for a range of ports: two for each of the 16 bits except the last.
	termsOfRange = 30
)

// Flows estimates the number of OpenFlow flows that the rule costs on a node with subjects of the policy. It is an upper bound
// while the node has at most six subjects and each set of peers has at most six pods (TestFlowsOfPolicyRules). The terms of one
// ACL add up: ovn-controller makes conjunctions of them (ovs-fields(7)), once per protocol.
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
