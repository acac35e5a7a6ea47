// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// ranges returns n ranges of ports. The estimate of each is 120 flows.
func ranges(n int) []networkingv1.NetworkPolicyPort {
	var ports []networkingv1.NetworkPolicyPort
	for i := range n {
		ports = append(ports, networkingv1.NetworkPolicyPort{Port: new(intstr.FromInt(1 + i)), EndPort: new(int32(65534 - i))})
	}
	return ports
}

func TestRulesThatExceedThePolicysBoundAreLeftOut(t *testing.T) {
	rule := func(ports int) networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{Ports: ranges(ports)}
	}
	for _, tt := range []struct {
		name         string
		rules        []networkingv1.NetworkPolicyIngressRule
		egress       []networkingv1.NetworkPolicyEgressRule
		want, refuse string // keys of rules, prefix of the problem
	}{
		{"within the bound", []networkingv1.NetworkPolicyIngressRule{rule(100), rule(200)}, nil, "ingress/0 ingress/1 ingress/default", ""},
		{
			"a rule that exceeds it, and one that fits", []networkingv1.NetworkPolicyIngressRule{rule(500), rule(100), rule(1)}, nil,
			"ingress/0 ingress/2 ingress/default", "ingress rule 1: with it the policy would cost a node 72064 flows, more than 65536",
		},
		{
			"both directions share it", []networkingv1.NetworkPolicyIngressRule{rule(500)}, []networkingv1.NetworkPolicyEgressRule{{Ports: ranges(100)}},
			"ingress/0 ingress/default egress/default", "egress rule 0: with it",
		},
		{
			"many rules without peers", slices.Repeat([]networkingv1.NetworkPolicyIngressRule{{}}, 2100), nil, "", "ingress rule 2048: with it",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			np := &networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{Ingress: tt.rules, Egress: tt.egress}}
			c := networkPolicy(np, fixedNumbers)
			var keys []string
			for _, r := range c.Rules {
				keys = append(keys, r.Key)
			}
			if got := strings.Join(keys, " "); tt.want != "" && got != tt.want {
				t.Errorf("rules %s, want %s", got, tt.want)
			}
			if len(c.problems) == 0 != (tt.refuse == "") || tt.refuse != "" && !strings.HasPrefix(c.problems[0], tt.refuse) {
				t.Errorf("problems %.3q, want %q", c.problems, tt.refuse)
			}
			flows := 0
			for _, r := range c.Rules {
				flows += r.Flows()
			}
			if flows != c.flows || flows > maxPolicyFlows+200 {
				t.Errorf("rules of %d flows, counted as %d", flows, c.flows)
			}
		})
	}
}

// TestNamedPortsOfRulesThatAreLeftOutStillCount: otherwise the named port of an omitted rule would have no number in the next pass, so that
// the rule would fit, and exceed the bound again in the pass after it.
func TestNamedPortsOfRulesThatAreLeftOutStillCount(t *testing.T) {
	np := &networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{
		{Ports: ranges(545)}, {Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromString("http"))}, {Port: new(intstr.FromInt(80))}}},
	}}}
	c := networkPolicy(np, fixedNumbers)
	if len(c.problems) != 1 || len(c.Rules) != 2 || len(c.uses) != 2 {
		t.Errorf("%d rules, sets %v, problems %q", len(c.Rules), c.uses, c.problems)
	}
}

func TestAPolicyHasABoundedNumberOfSets(t *testing.T) {
	var selectors []networkingv1.NetworkPolicyPeer
	var names []networkingv1.NetworkPolicyPort
	for i := range 1100 {
		selectors = append(selectors, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i)}}})
		names = append(names, networkingv1.NetworkPolicyPort{Port: new(intstr.FromString(fmt.Sprint("port-", i)))})
	}
	one := []networkingv1.NetworkPolicyIngressRule{{From: selectors[:1]}}
	for _, tt := range []struct {
		name    string
		ingress []networkingv1.NetworkPolicyIngressRule
		egress  []networkingv1.NetworkPolicyEgressRule
		sets    int // including the subjects
		refused bool
	}{
		{"500 selectors", []networkingv1.NetworkPolicyIngressRule{{From: selectors[:500]}}, nil, 501, false},
		{"one selector in many rules", slices.Repeat(one, 400), nil, 2, false},
		{"too many selectors", []networkingv1.NetworkPolicyIngressRule{{From: selectors}}, nil, 1, true},
		{"too many selectors, and one", []networkingv1.NetworkPolicyIngressRule{{From: selectors}, one[0]}, nil, 2, true},
		{"too many named ports", []networkingv1.NetworkPolicyIngressRule{{Ports: names}}, nil, 1, true},
		{"named ports of selectors", nil, []networkingv1.NetworkPolicyEgressRule{{To: selectors[:30], Ports: names[:30]}}, 901, false},
		{"too many of them", nil, []networkingv1.NetworkPolicyEgressRule{{To: selectors, Ports: names}}, 1, true},
	} {
		c := networkPolicy(&networkingv1.NetworkPolicy{Spec: networkingv1.NetworkPolicySpec{Ingress: tt.ingress, Egress: tt.egress}}, fixedNumbers)
		refused := slices.ContainsFunc(c.problems, func(p string) bool { return strings.Contains(p, "more than 1024 sets of pods") })
		if len(c.uses) != tt.sets || refused != tt.refused || len(c.problems) > 1 {
			t.Errorf("%s: %d sets, want %d; problems %.3q", tt.name, len(c.uses), tt.sets, c.problems)
		}
	}
}

func TestARefusedPolicyIsolates(t *testing.T) {
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p"}, Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		Ingress:     []networkingv1.NetworkPolicyIngressRule{{}}, Egress: []networkingv1.NetworkPolicyEgressRule{{}},
	}}
	c := networkPolicy(np, fixedNumbers)
	uses := slices.Clone(c.uses)
	c.refuse()
	var got []string
	for _, row := range c.rows() {
		got = append(got, row.Key+" "+row.Model.(*nb.ACL).Action)
	}
	if want := []string{"acl/ingress/default drop", "acl/egress/default drop"}; !slices.Equal(got, want) || !slices.Equal(uses, c.uses) || len(c.problems) != 1 {
		t.Errorf("rows %q, want %q; sets %v; problems %q", got, want, c.uses, c.problems)
	}
}
