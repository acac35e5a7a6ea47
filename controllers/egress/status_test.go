// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egress_test

import (
	"fmt"
	"testing"

	eventsv1 "k8s.io/api/events/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/egress"
)

func TestRulesAndTablesInStatus(t *testing.T) {
	n := start(t)
	s := n.Subnet("s", func(s *kubeovnv1.SubnetSpec) {
		s.CIDRBlock, s.NATOutgoing = dual, true
		s.NATOutgoingPolicyRules = []kubeovnv1.NATOutgoingPolicyRule{{
			Match: kubeovnv1.NATOutgoingPolicyMatch{DstIPs: "192.0.2.0/24"}, Action: kubeovnv1.NATOutgoingPolicyForward,
		}}
	}, n.process)
	rules := func(want int) {
		t.Helper()
		n.Eventually(func() string {
			n.Get(s)
			if got := s.Status.NATOutgoingPolicyRules; len(got) != want || want > 0 && len(got[0].RuleID) != 12 {
				return fmt.Sprintf("status has rules %v, want %d", got, want)
			}
			return ""
		})
	}
	rules(1)
	n.change(s, func(s *kubeovnv1.SubnetSpec) { s.NATOutgoing = false })
	rules(0)

	external := func(s *kubeovnv1.SubnetSpec) {
		s.ExternalEgressGateway, s.PolicyRoutingPriority, s.PolicyRoutingTableID = "192.0.2.1", 1000, 1000
	}
	n.change(s, external)
	n.status("s", "", "")
	second := n.Subnet("t", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = "10.18.0.0/24"; external(s) }, n.process)
	n.status("t", "", egress.ReasonTableConflict)
	n.Event(second, eventsv1.Event{Reason: egress.ReasonTableConflict})
	n.change(s, func(s *kubeovnv1.SubnetSpec) { s.PolicyRoutingTableID = 1001 })
	n.status("t", "", "")
}
