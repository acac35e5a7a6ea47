// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
)

var (
	a = port{"a", "web", 20}
	b = port{"b", "web", 21}
)

func TestARuleIsServedAndChecked(t *testing.T) {
	w := newWorld(t)
	w.pods(kubeovnv1.DefaultVpc, a, b)
	first := w.start(a, b)
	rule := newRule("web", "172.30.0.1, fd00:172::1")
	w.Create(rule)
	s := w.service("slr-web")
	if s.Spec.ClusterIP != corev1.ClusterIPNone || s.Spec.Selector["app"] != "web" || s.Spec.Ports[0].TargetPort.IntValue() != 8080 {
		t.Errorf("the Service is %+v", s.Spec)
	}
	w.serves("web", "172.30.0.1:80= [fd00:172::1]:80= |  | ")
	idle := w.Says(rule, kubeovnv1.ConditionEndpointsChecked, metav1.ConditionFalse, "Service default/slr-web of the rule has no ready endpoint")
	mistakes.Sees(t, 40, idle.Message)
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "applied, but connections are refused")
	list := w.slicesOf("slr-web", []discoveryv1.EndpointPort{tcp("http", 8080)}, a, b)
	const both = "172.30.0.1:80=10.16.0.20:8080,10.16.0.21:8080 [fd00:172::1]:80=[fd00:10:16::14]:8080,[fd00:10:16::15]:8080 | " +
		"10.16.0.20=a.default@web 10.16.0.21=b.default@web " +
		"[fd00:10:16::14]=a.default@web [fd00:10:16::15]=b.default@web | 172.30.0.1:80 [fd00:172::1]:80"
	w.serves("web", both)
	w.owns("web:web")
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	w.Says(rule, kubeovnv1.ConditionEndpointsChecked, metav1.ConditionTrue, "")
	w.Measures(4, "kiln_switch_lb_rule_endpoints", "rule", "web", "checked", "true")
	w.Measures(0, "kiln_switch_lb_rule_endpoints", "rule", "web", "checked", "false")
	if rule.Status.Ports != "80/TCP" || rule.Status.Service != "default/slr-web" {
		t.Errorf("the status is %+v", rule.Status)
	}

	first.Stop()
	second := w.start(a, b)
	other := newRule("other", "172.30.0.2")
	w.Create(other)
	w.service("slr-other")
	w.slicesOf("slr-other", []discoveryv1.EndpointPort{tcp("http", 8080)}, a)
	w.serves("other", "172.30.0.2:80=10.16.0.20:8080 | 10.16.0.20=a.default@web | 172.30.0.2:80")
	w.owns("web:other,web")
	w.serves("web", both)

	w.Change(rule, func() { rule.Annotations = map[string]string{"ovn.kubernetes.io/service_health_check": "false"} })
	w.serves("web", strings.Split(both, " | ")[0]+" |  | ")
	w.owns("web:other")
	w.Eventually(func() string {
		if w.Get(rule); apimeta.FindStatusCondition(rule.Status.Conditions, kubeovnv1.ConditionEndpointsChecked) != nil {
			return "a rule with disabled checks still reports them"
		}
		return ""
	})
	w.Change(rule, func() { rule.Annotations = nil })
	w.serves("web", both)
	for family, slice := range list {
		w.Change(slice, func() { slice.Endpoints = endpointsOf(family, []port{b}) })
	}
	w.serves("web", "172.30.0.1:80=10.16.0.21:8080 [fd00:172::1]:80=[fd00:10:16::15]:8080 | "+
		"10.16.0.21=b.default@web [fd00:10:16::15]=b.default@web | 172.30.0.1:80 [fd00:172::1]:80")

	plain := newRule("plain", "172.30.0.3", static("10.16.0.20")) // it has no Service whose events requeue it
	w.Create(plain)
	w.serves("plain", "172.30.0.3:80=10.16.0.20:8080 | 10.16.0.20=a.default@web | 172.30.0.3:80")
	second.Stop()
	w.Delete(rule, other, plain)
	third := w.start(a, b)
	w.serves("web", "")
	w.serves("other", "")
	w.serves("plain", "")
	if n := third.Transactions(); n > 3 {
		t.Errorf("%d transactions to clean up after three rules", n)
	}
}

func TestRulesOfCustomVPCs(t *testing.T) {
	w := newWorld(t)
	theirs := port{"c", "theirs", 20}
	w.pods("tenant", theirs)
	w.start(theirs, a)
	w.Create(newRule("pods", "172.30.0.1"), newRule("named", "172.30.0.1"))
	named := newRule("by-router", "172.30.0.1", static("10.16.0.20"))
	named.Annotations = map[string]string{"ovn.kubernetes.io/logical_router": "tenant"}
	named.Spec.Ports[0].Port = 81
	switched := newRule("by-switch", "172.30.0.1", static("10.16.0.20"))
	switched.Annotations = map[string]string{"ovn.kubernetes.io/logical_switch": "late"}
	switched.Spec.Ports[0].Port = 82
	ours := newRule("ours", "172.30.0.1", static("10.16.0.20"))
	w.Create(named, switched, ours)
	w.service("slr-pods")
	w.slicesOf("slr-pods", []discoveryv1.EndpointPort{tcp("http", 8080)}, theirs)
	w.inGroup("pods", "tenant")
	w.inGroup("by-router", "tenant")
	w.serves("by-router", "172.30.0.1:81=10.16.0.20:8080 | 10.16.0.20=c.default@theirs | 172.30.0.1:81")
	w.Says(switched, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "subnet late, which annotation ovn.kubernetes.io/logical_switch names, does not exist")
	late := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "late"}, Spec: kubeovnv1.SubnetSpec{Vpc: "tenant", CIDRBlock: "10.17.0.0/24"}}
	w.Create(late)
	w.inGroup("by-switch", "tenant")
	older := &kubeovnv1.SwitchLBRule{ObjectMeta: metav1.ObjectMeta{Name: "named"}}
	w.Says(ours, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "the older SwitchLBRule named has 172.30.0.1 80/TCP")
	w.serves("ours", "")
	w.Delete(older)
	w.inGroup("ours", kubeovnv1.DefaultVpc)
	w.serves("ours", "172.30.0.1:80=10.16.0.20:8080 | 10.16.0.20=a.default@web | 172.30.0.1:80")
}

// inGroup waits until a rule's load balancer is in the group of a VPC.
func (w world) inGroup(rule, vpc string) {
	w.Helper()
	w.groupOf("slr-"+rule, vpc)
}

func (w world) groupOf(rule, vpc string) {
	w.Helper()
	w.Eventually(func() string {
		for uuid, row := range w.Database.Rows("Load_Balancer") {
			if row["name"] != rule+"/tcp" {
				continue
			}
			for group, of := range w.Database.Rows("Load_Balancer_Group") {
				for _, member := range of.Strings("load_balancer") {
					if member == uuid && group == translate.ServicesRef(vpc).UUID() {
						return ""
					}
				}
			}
		}
		return fmt.Sprintf("rule %s is not in the group of VPC %s", rule, vpc)
	})
}

func static(endpoints ...string) func(*kubeovnv1.SwitchLBRuleSpec) {
	return func(s *kubeovnv1.SwitchLBRuleSpec) { s.Selector, s.Endpoints = nil, endpoints }
}

func TestWrongRules(t *testing.T) {
	w := newWorld(t)
	w.start(a)
	taken := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "slr-stolen"}, Spec: corev1.ServiceSpec{
		ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 80}},
	}}
	w.Create(taken)
	cluster := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}}
	w.Get(cluster)
	for name, c := range map[string]struct {
		rule *kubeovnv1.SwitchLBRule
		text string
	}{
		"no-vip":   {newRule("no-vip", ""), "vip is empty"},
		"families": {newRule("families", "10.0.0.1,10.0.0.2"), "10.0.0.2"},
		"loopback": {newRule("loopback", "127.0.0.1"), "cannot reach 127.0.0.1"},
		"nobody":   {newRule("nobody", "172.30.0.1", static()), "neither selector nor endpoints"},
		"both":     {newRule("both", "172.30.0.1", func(s *kubeovnv1.SwitchLBRuleSpec) { s.Endpoints = []string{"10.16.0.2"} }), "both selector and endpoints"},
		"no-ports": {newRule("no-ports", "172.30.0.1", func(s *kubeovnv1.SwitchLBRuleSpec) { s.Ports = nil }), "ports is empty"},
		"names": {newRule("names", "172.30.0.1", func(s *kubeovnv1.SwitchLBRuleSpec) {
			s.Ports = append(s.Ports, kubeovnv1.LBRulePort{Name: "http", Port: 81})
		}), "the name http is used twice"},
		"unnamed": {newRule("unnamed", "172.30.0.1", func(s *kubeovnv1.SwitchLBRuleSpec) {
			s.Ports = append(s.Ports, kubeovnv1.LBRulePort{Name: "tcp-82", Port: 81}, kubeovnv1.LBRulePort{Port: 82})
		}), "the name tcp-82 is used twice, or belongs to a port without a name"},
		"stolen": {newRule("stolen", "172.30.0.3"), "Service default/slr-stolen"},
		"service": {newRule("service", cluster.Spec.ClusterIP, static("10.16.0.20"), func(s *kubeovnv1.SwitchLBRuleSpec) { s.Ports[0].Port = 443 }),
			"Service default/kubernetes has " + cluster.Spec.ClusterIP + " 443/TCP"},
	} {
		w.Create(c.rule)
		w.Says(c.rule, kubeovnv1.ConditionValidated, metav1.ConditionFalse, c.text)
		w.Says(c.rule, kubeovnv1.ConditionReady, metav1.ConditionFalse, c.text)
		w.serves(name, "")
	}
	for text, rule := range map[string]*kubeovnv1.SwitchLBRule{
		"must be an address": newRule("x", "ten"),
		"spec.selector[0]":   newRule("x", "172.30.0.1", func(s *kubeovnv1.SwitchLBRuleSpec) { s.Selector = []string{"app=web"} }),
		"spec.endpoints[0]":  newRule("x", "172.30.0.1", static("ten")),
		"once only": newRule("x", "172.30.0.1", func(s *kubeovnv1.SwitchLBRuleSpec) {
			s.Ports = append(s.Ports, kubeovnv1.LBRulePort{Name: "again", Port: 80})
		}),
		"spec.ports[0].port": newRule("x", "172.30.0.1", func(s *kubeovnv1.SwitchLBRuleSpec) { s.Ports[0].Port = 0 }),
	} {
		if err := w.Client.Create(w.Context(), rule); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want one that says %q", err, text)
		}
	}
	good := newRule("good", "172.30.0.7", static("10.16.0.20"))
	w.Create(good)
	const served = "172.30.0.7:80=10.16.0.20:8080 | 10.16.0.20=a.default@web | 172.30.0.7:80"
	w.serves("good", served)
	w.Says(good, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	w.Change(good, func() { good.Spec.Ports = nil })
	w.Says(good, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "ports is empty")
	w.serves("good", served) // the previous configuration stays
}

func TestDamageHeals(t *testing.T) {
	w := newWorld(t)
	w.start(a)
	rule := newRule("web", "10.16.0.100", static("10.16.0.20"))
	w.Create(rule)
	const served = "10.16.0.100:80=10.16.0.20:8080 | 10.16.0.20=a.default@web | 10.16.0.100:80"
	const held = "slr-web-10-16-0-100:web web:web"
	w.serves("web", served)
	w.owns(held)
	for _, name := range []string{"web", "slr-web-10-16-0-100"} {
		before := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: name}}
		w.Get(before)
		w.Delete(before)
		w.Eventually(func() string {
			after := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if !w.Get(after) || after.UID == before.UID {
				return "Vip " + name + " is not there again"
			}
			return ""
		})
		w.serves("web", served)
		w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
		w.Says(rule, kubeovnv1.ConditionEndpointsChecked, metav1.ConditionTrue, "")
	}
	for uuid := range w.Database.Rows("Load_Balancer") {
		w.Database.Transact(nbtest.Op{
			"op": "update", "table": "Load_Balancer", "where": []any{[]any{"_uuid", "==", []any{"uuid", uuid}}},
			"row": map[string]any{"health_check": []any{"set", []any{}}, "ip_port_mappings": []any{"map", []any{}}},
		})
	}
	w.serves("web", served)
	w.owns(held)

	selecting := newRule("pods", "172.30.0.1")
	w.Create(selecting)
	first := w.service("slr-pods")
	w.Delete(first)
	w.Eventually(func() string {
		if s := w.service("slr-pods"); s.UID == first.UID {
			return "the Service is not there again"
		}
		return ""
	})
}
