// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

func TestNATRules(t *testing.T) {
	rule := func(src, dst string) v1.NATOutgoingPolicyRule {
		return v1.NATOutgoingPolicyRule{Action: "nat", Match: v1.NATOutgoingPolicyMatch{SrcIPs: src, DstIPs: dst}}
	}
	got, err := ParseNATRule(rule("10.0.0.5, 10.0.1.9/24", "fd00::1,192.0.2.0/24"))
	if err != nil || fmt.Sprint(got) != "{[10.0.0.5/32 10.0.1.0/24] [fd00::1/128 192.0.2.0/24] false}" {
		t.Errorf("got %v, %v", got, err)
	}
	if !got.Concerns(ipfamily.IPv4) || got.Concerns(ipfamily.IPv6) {
		t.Error("a rule is about the families that both sides have")
	}
	for _, wrong := range []string{"x", "10.0.0.0/33", "10.0.0.1,", ","} {
		if _, err := ParseNATRule(rule(wrong, "")); err == nil {
			t.Errorf("%q is read", wrong)
		}
	}
	s := &v1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	s.Spec.NATOutgoing = true
	s.Spec.NATOutgoingPolicyRules = []v1.NATOutgoingPolicyRule{rule("10.0.0.5", ""), rule("10.0.0.6", ""), rule("10.0.0.5", "")}
	before := RuleStatus(s)
	s.Spec.NATOutgoingPolicyRules = s.Spec.NATOutgoingPolicyRules[1:]
	after := RuleStatus(s)
	if len(before) != 3 || len(before[0].RuleID) != 12 || before[0].RuleID == before[2].RuleID || before[1].RuleID != after[0].RuleID {
		t.Errorf("IDs were %v, are %v", before, after)
	}
}
