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
	"github.com/kiln-net/kiln/internal/northbound/translate"
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
	if n != 0 || c.logRate != 0 || len(c.Rules) != 501 || !strings.Contains(c.logProblem, "more than 1000 rules that log") {
		t.Errorf("%d of %d rules of the younger policy log at %d packets per second; problems: %q", n, len(c.Rules), c.logRate, c.logProblem)
	}
	r.forgetLogs(translate.NetworkPolicyOwner("shop", "older"))
	if n, _ := compile(younger); n != 500 {
		t.Errorf("%d rules of the younger policy log after the deletion of the older one", n)
	}
}

func TestDropsAreLoggedUntilATime(t *testing.T) {
	now := time.Date(2026, 11, 30, 15, 0, 0, 0, time.UTC)
	r := &Reconciler{Now: func() time.Time { return now }}
	for value, want := range map[string]struct {
		left    time.Duration
		refused bool
	}{
		"": {}, " ": {}, "2026-11-30T15:00:01Z": {left: time.Second}, " 2026-11-30T15:00:01Z\n": {left: time.Second}, "2026-11-30T16:00:00Z": {left: time.Hour},
		"2026-11-30T17:30:00+02:00": {left: 30 * time.Minute}, "2026-11-30T15:00:00Z": {}, "2026-11-30T14:59:59Z": {}, "0001-01-01T00:00:00Z": {},
		"2026-11-30T16:00:01Z": {refused: true}, "9999-12-31T23:59:59Z": {refused: true}, "true": {refused: true}, "5m": {refused: true}, "1796137200": {refused: true},
		"2026-11-30t15:00:01z": {refused: true}, "2026-11-30": {refused: true}, strings.Repeat("9", 1<<17): {refused: true}, "\x1b[2J\n": {refused: true},
	} {
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "a", Annotations: map[string]string{kubeovnv1.AnnotationLogDropsUntil.Key(): value},
		}, Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}, Ingress: []networkingv1.NetworkPolicyIngressRule{{}},
		}}
		c := networkPolicy(np, fixedNumbers)
		r.logDrops(np.Annotations, &c)
		r.limitLogs(np, &c)
		var logging []string
		for _, rule := range c.Rules {
			if rule.Log {
				logging = append(logging, rule.Key)
			}
		}
		wantLogging, rate := []string(nil), 0
		if want.left > 0 {
			wantLogging, rate = []string{"ingress/default", "egress/default"}, defaultLogRate
		}
		if c.logLeft != want.left || !slices.Equal(logging, wantLogging) || c.logRate != rate || r.logs.rate("shop") != rate {
			t.Errorf("%.60q: %s left, the rules %v log, %d packets per second, %d in the namespace", value, c.logLeft, logging, c.logRate, r.logs.rate("shop"))
		}
		refused := strings.Contains(c.logProblem, "write a time that is at most 1h0m0s ahead") && len(c.logProblem) < 300 && !strings.ContainsAny(c.logProblem, "\x1b\n")
		if refused != want.refused || !refused && c.logProblem != "" {
			t.Errorf("%.60q: %q", value, c.logProblem)
		}
	}
}

// TestBothReasonsToLogAddUp: a policy can log allowed packets, and dropped ones for a while.
func TestBothReasonsToLogAddUp(t *testing.T) {
	now := time.Date(2026, 11, 30, 15, 0, 0, 0, time.UTC)
	r := &Reconciler{Now: func() time.Time { return now }}
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a", Annotations: map[string]string{
		kubeovnv1.AnnotationEnableLog.Key(): "true", kubeovnv1.AnnotationLogActions.Key(): "allow", kubeovnv1.AnnotationLogRate.Key(): "7",
		kubeovnv1.AnnotationLogDropsUntil.Key(): "2026-11-30T15:10:00Z",
	}}, Spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{}}}}
	for _, want := range []int{2, 1} { // rules that log, before and after the time
		c := networkPolicy(np, fixedNumbers)
		r.logDrops(np.Annotations, &c)
		logging := 0
		for _, rule := range c.Rules {
			if rule.Log {
				logging++
			}
		}
		if logging != want || c.logRate != 7 {
			t.Errorf("%s: %d of %d rules log, %d packets per second", now, logging, len(c.Rules), c.logRate)
		}
		now = now.Add(10 * time.Minute)
	}
}

// TestTheLoggingRulesOfGroupsAreBounded: SecurityGroups and cluster-wide policies have one bound, and the younger group logs nothing.
func TestTheLoggingRulesOfGroupsAreBounded(t *testing.T) {
	now := time.Unix(1e9, 0)
	r := &Reconciler{Now: func() time.Time { return now }}
	group := func(name string, age time.Duration, rules int) *kubeovnv1.SecurityGroup {
		sg := &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{
			Name: name, CreationTimestamp: metav1.Time{Time: now.Add(-age)}, Annotations: map[string]string{kubeovnv1.AnnotationLogDropsUntil.Key(): now.Add(time.Minute).UTC().Format(time.RFC3339)},
		}}
		for range rules {
			sg.Spec.IngressRules = append(sg.Spec.IngressRules, kubeovnv1.SecurityGroupRule{
				IPVersion: "ipv4", Protocol: "all", RemoteType: kubeovnv1.RemoteAddress, RemoteAddress: "0.0.0.0/0", Policy: kubeovnv1.SecurityGroupDrop, Priority: 1,
			})
		}
		return sg
	}
	compile := func(sg *kubeovnv1.SecurityGroup) compiled {
		return r.compileGroup(sg, func(string) bool { return true })
	}
	older, younger := group("older", time.Hour, 600), group("younger", 0, 500)
	if c := compile(younger); c.logging() != 502 || c.logRate != defaultLogRate || c.logLeft != time.Minute {
		t.Errorf("alone: %d rules log, at %d packets per second, for %s", c.logging(), c.logRate, c.logLeft)
	}
	if c := compile(older); c.logging() != 602 || len(c.problems) > 0 {
		t.Errorf("the older group: %d rules log", c.logging())
	}
	if c := compile(younger); c.logging() != 0 || c.logRate != 0 || !strings.Contains(c.logProblem, "the older SecurityGroups and cluster-wide policies") {
		t.Errorf("the younger group: %d rules log: %s", c.logging(), c.logProblem)
	}
	r.forgetLogs(translate.SecurityGroupOwner("older"))
	if c := compile(younger); c.logging() != 502 {
		t.Errorf("after the deletion: %d rules log", c.logging())
	}
	names, subjects := LoggedDrops(younger, World{Group: func(string) bool { return true }})
	if !slices.Contains(names, "sg/younger/ingress/default") || !slices.Contains(names, "sg/younger/ingress/499") || subjects.Group != "younger" {
		t.Errorf("names %q of the pods %s", names, subjects.String())
	}
}
