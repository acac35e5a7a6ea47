// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha1"
	"sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

func TestClusterWidePoliciesOfEachKind(t *testing.T) {
	compile := func(p clusterPolicy) compiled { return clusterNetworkPolicy(p, fixedNumbers, fixedNodes) }
	policies(t, "testdata/adminnetworkpolicy-*.in.yaml", func(p *v1alpha1.AdminNetworkPolicy) compiled { return compile(readAdmin(p)) })
	policies(t, "testdata/baseline-*.in.yaml", func(p *v1alpha1.BaselineAdminNetworkPolicy) compiled { return compile(readBaseline(p)) })
	policies(t, "testdata/clusternetworkpolicy-*.in.yaml", func(p *v1alpha2.ClusterNetworkPolicy) compiled { return compile(readCluster(p)) })
}

// adminPolicy returns an AdminNetworkPolicy with a rule for each of the actions, to and from all pods.
func adminPolicy(priority int32, actions ...v1alpha1.AdminNetworkPolicyRuleAction) *v1alpha1.AdminNetworkPolicy {
	all := &metav1.LabelSelector{}
	p := &v1alpha1.AdminNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	p.Spec.Priority, p.Spec.Subject.Namespaces = priority, all
	for _, action := range actions {
		p.Spec.Ingress = append(p.Spec.Ingress, v1alpha1.AdminNetworkPolicyIngressRule{Action: action, From: []v1alpha1.AdminNetworkPolicyIngressPeer{{Namespaces: all}}})
		p.Spec.Egress = append(p.Spec.Egress, v1alpha1.AdminNetworkPolicyEgressRule{Action: action, To: []v1alpha1.AdminNetworkPolicyEgressPeer{{Namespaces: all}}})
	}
	return p
}

// alternating returns n rules, of which no two consecutive ones have the same action.
func alternating(n int) (actions []v1alpha1.AdminNetworkPolicyRuleAction) {
	for i := range n {
		actions = append(actions, []v1alpha1.AdminNetworkPolicyRuleAction{"Allow", "Deny", "Pass"}[i%3])
	}
	return actions
}

// TestTheOrderOfAdminNetworkPolicies: of two conflicting policies the one with the lower number decides, for all numbers and any number of rules.
func TestTheOrderOfAdminNetworkPolicies(t *testing.T) {
	below := translate.PriorityCluster + 1
	for priority := range int32(1001) {
		c := clusterNetworkPolicy(readAdmin(adminPolicy(priority, alternating(100)...)), fixedNumbers, fixedNodes)
		highest, lowest := c.Rules[0].Priority, c.Rules[0].Priority
		for _, r := range c.Rules {
			highest, lowest = max(highest, r.Priority), min(lowest, r.Priority)
		}
		if highest >= below || lowest < 1 {
			t.Fatalf("priority %d has ACLs with priorities %d to %d, want them from %d down", priority, highest, lowest, below-1)
		}
		below = lowest
	}
}

// TestAPolicyWithRoomForItsRules has as many changes of its action as its priority has room for, and many rules with the same action.
func TestAPolicyWithRoomForItsRules(t *testing.T) {
	for priority, room := range map[int32]int{0: 100, 99: 100, 100: 22, 1000: 22} {
		c := clusterNetworkPolicy(readAdmin(adminPolicy(priority, alternating(room)...)), fixedNumbers, fixedNodes)
		if len(c.problems) > 0 || len(c.Rules) != 2*room {
			t.Errorf("priority %d: %d rules, problems %v", priority, len(c.Rules), c.problems)
		}
		for i, r := range c.Rules[1:room] {
			if r.Priority != c.Rules[i].Priority-1 {
				t.Errorf("priority %d: rule %s has priority %d, the one before %d", priority, r.Key, r.Priority, c.Rules[i].Priority)
			}
		}
		same := slices.Concat(slices.Repeat([]v1alpha1.AdminNetworkPolicyRuleAction{"Allow"}, 99), []v1alpha1.AdminNetworkPolicyRuleAction{"Deny"})
		if c := clusterNetworkPolicy(readAdmin(adminPolicy(priority, same...)), fixedNumbers, fixedNodes); len(c.problems) > 0 || len(c.Rules) != 200 {
			t.Errorf("priority %d: %d of 200 rules with two actions, problems %v", priority, len(c.Rules), c.problems)
		}
	}
}

// TestAPolicyWithoutRoomForItsRulesCloses: a rule that has no priority of its own must not open what rules before it close.
func TestAPolicyWithoutRoomForItsRulesCloses(t *testing.T) {
	c := clusterNetworkPolicy(readAdmin(adminPolicy(500, alternating(30)...)), fixedNumbers, fixedNodes)
	want := "ingress rule 21: the rules before it change their action so often that this priority has no room for it: from here on, no rule allows, " +
		"and pass rules deny: put rules with the same action together, or write a priority from 0 to 99"
	if len(c.problems) != 2 || c.problems[0] != want || c.problems[1] != strings.Replace(want, "ingress", "egress", 1) {
		t.Errorf("problems are %q", c.problems)
	}
	actions := map[string]nb.ACLAction{}
	for _, r := range c.Rules {
		actions[r.Key] = r.Action
		var number int
		if _, err := fmt.Sscanf(r.Key, string(r.Direction)+"/%d", &number); err != nil {
			t.Fatal(err)
		}
		if want := c.Rules[0].Priority - min(number, 21); r.Priority != want {
			t.Errorf("%s has priority %d, want %d", r.Key, r.Priority, want)
		}
	}
	for key, want := range map[string]nb.ACLAction{
		"ingress/18": nb.ACLActionAllowRelated, "ingress/20": nb.ACLActionPass,
		"ingress/21": "", "ingress/22": nb.ACLActionDrop, "ingress/23": nb.ACLActionDrop, "egress/24": "", "egress/29": nb.ACLActionDrop,
	} {
		if actions[key] != want {
			t.Errorf("%s has action %q, want %q", key, actions[key], want)
		}
	}
}
