// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestTheRateOfLogsIsBounded(t *testing.T) {
	for value, want := range map[string]struct {
		rate    int
		refused bool
	}{
		"": {100, false}, "1": {1, false}, "1000": {1000, false}, "1001": {1000, true}, "2147483647": {1000, true}, "99999999999999999999": {1000, true},
		"0": {100, true}, "-1": {100, true}, "many": {100, true},
	} {
		o, problems := readOptions(map[string]string{kubeovnv1.AnnotationLogRate.Key(): value})
		if o.logRate != want.rate || (len(problems) == 1 && strings.Contains(problems[0], "from 1 to 1000")) != want.refused {
			t.Errorf("acl_log_meter_rate %q: %d packets per second, problems %q", value, o.logRate, problems)
		}
	}
}

func TestTheRatesOfANamespaceAddUpToTheBound(t *testing.T) {
	var l logs
	name := func(i int) types.NamespacedName {
		return types.NamespacedName{Namespace: "shop", Name: fmt.Sprint(i)}
	}
	expect := func(want int) {
		t.Helper()
		if got := l.rate("shop"); got != want {
			t.Errorf("the policies log %d packets per second, want %d", got, want)
		}
	}
	expect(0)
	l.set(name(1), 100)
	l.set(name(2), 20)
	l.set(types.NamespacedName{Namespace: "other", Name: "1"}, 500)
	expect(120)
	l.set(name(2), 30)
	expect(130)
	for i := range 20 {
		l.set(name(i), 100)
	}
	expect(1000)
	for i := range 20 {
		l.set(name(i), 0)
	}
	expect(0)
	if len(l.rates) != 1 {
		t.Errorf("the rates are %v", l.rates)
	}
}

// TestTheLoggingRulesOfANamespaceAreBounded creates a policy with 600 logging rules and a younger one with 500.
func TestTheLoggingRulesOfANamespaceAreBounded(t *testing.T) {
	r := &Reconciler{}
	logging := func(name string, age time.Duration, rules int) *networkingv1.NetworkPolicy {
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, CreationTimestamp: metav1.Time{Time: time.Unix(1e9, 0).Add(-age)},
			Annotations: map[string]string{kubeovnv1.AnnotationEnableLog.Key(): "true", kubeovnv1.AnnotationLogActions.Key(): "allow"},
		}}
		for range rules {
			np.Spec.Ingress = append(np.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{})
		}
		return np
	}
	compile := func(np *networkingv1.NetworkPolicy) (rules int, c compiled) {
		c = networkPolicy(np, fixedNumbers)
		r.limitLogs(np, &c)
		for _, rule := range c.Rules {
			if rule.Log {
				rules++
			}
		}
		return rules, c
	}
	older, younger := logging("older", time.Hour, 600), logging("younger", 0, 500)
	if n, c := compile(younger); n != 500 || c.logRate != 100 {
		t.Errorf("alone, %d rules log at %d packets per second", n, c.logRate)
	}
	if n, _ := compile(older); n != 600 {
		t.Errorf("%d rules of the older policy log", n)
	}
	n, c := compile(younger)
	if n != 0 || c.logRate != 0 || len(c.Rules) != 501 || !slices.ContainsFunc(c.problems, func(p string) bool { return strings.Contains(p, "more than 1000 rules that log") }) {
		t.Errorf("%d of %d rules of the younger policy log at %d packets per second; problems: %q", n, len(c.Rules), c.logRate, c.problems)
	}
	r.forgetLogs(types.NamespacedName{Namespace: "shop", Name: "older"})
	if n, _ := compile(younger); n != 500 {
		t.Errorf("%d rules of the younger policy log after the deletion of the older one", n)
	}
}
