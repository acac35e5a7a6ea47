// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// Addresses of the OvnEip `front`, and the load balancers of rules with the endpoints of both pods or pod a.
const (
	frontV4, frontV6 = "10.99.0.10", "fd00:10:99::10"

	frontToBoth = "10.99.0.10:80=10.16.0.20:8080,10.16.0.21:8080 [fd00:10:99::10]:80=[fd00:10:16::14]:8080,[fd00:10:16::15]:8080 | " +
		"10.16.0.20=a.default@web 10.16.0.21=b.default@web " +
		"[fd00:10:16::14]=a.default@web [fd00:10:16::15]=b.default@web | 10.99.0.10:80 [fd00:10:99::10]:80"
	frontToA = "10.99.0.10:80=10.16.0.20:8080 [fd00:10:99::10]:80= | 10.16.0.20=a.default@web | 10.99.0.10:80"
)

// at81 replaces port 80 by 81 in the text of a load balancer.
func at81(text string) string { return regexp.MustCompile(`:80\b`).ReplaceAllString(text, ":81") }

// external creates the default VPC and the external subnet for RouterLBRules.
func (w world) external() {
	w.Helper()
	w.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultVpc}})
	w.Subnet("external", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = externalCIDRs })
}

func front(name string) *kubeovnv1.OvnEip {
	return &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.OvnEipSpec{V4IP: frontV4, V6IP: frontV6}}
}

func newRouterRule(name, eip string, change ...func(*kubeovnv1.RouterLBRuleSpec)) *kubeovnv1.RouterLBRule {
	rule := &kubeovnv1.RouterLBRule{ObjectMeta: metav1.ObjectMeta{Name: name}}
	rule.Spec.OvnEip = eip
	rule.Spec.LBRuleBackends = newRule(name, "").Spec.LBRuleBackends
	for _, f := range change {
		f(&rule.Spec)
	}
	return rule
}

func to(endpoints ...string) func(*kubeovnv1.RouterLBRuleSpec) {
	return func(s *kubeovnv1.RouterLBRuleSpec) { s.Selector, s.Endpoints = nil, endpoints }
}

// exposed waits until a Service has these external IPs and a ClusterIP.
func (w world) exposed(name string, addresses ...string) *corev1.Service {
	w.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	w.Eventually(func() string {
		if !w.Get(s) || !slices.Equal(s.Spec.ExternalIPs, addresses) || s.Spec.ClusterIP == corev1.ClusterIPNone {
			return fmt.Sprintf("Service %s is %+v", name, s.Spec)
		}
		return ""
	})
	return s
}

func (w world) noService(name string) {
	w.Helper()
	w.Eventually(func() string {
		if w.Get(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}) {
			return "Service " + name + " is there"
		}
		return ""
	})
}

func TestARouterLBRuleIsServedOnceEverythingIsThere(t *testing.T) {
	w := newWorld(t)
	w.pods(kubeovnv1.DefaultVpc, a, b)
	first := w.start(a, b)
	rule := newRouterRule("web", "front", func(s *kubeovnv1.RouterLBRuleSpec) { s.SessionAffinity = corev1.ServiceAffinityClientIP })
	w.Create(rule)
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionFalse, "Vpc ovn-cluster, which does not exist: create it")
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionFalse, "OvnEip front, which does not exist: create it")
	w.Says(rule, kubeovnv1.ConditionValidated, metav1.ConditionTrue, "")
	eip := front("front")
	w.Create(eip)
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionFalse, "OvnEip front to have its addresses")
	first.Stop()
	w.external()
	second := w.start(a, b)
	s := w.exposed("rlr-web", frontV4, frontV6)
	if s.Spec.Selector["app"] != "web" || s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP || s.Spec.Ports[0].TargetPort.IntValue() != 8080 {
		t.Errorf("the Service is %+v", s.Spec)
	}
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	list := w.slicesOf("rlr-web", []discoveryv1.EndpointPort{tcp("http", 8080)}, a, b)
	w.servesRouter("web", frontToBoth)
	w.owns("web:web")
	w.Says(rule, kubeovnv1.ConditionEndpointsChecked, metav1.ConditionTrue, "")
	w.Measures(4, "kiln_router_lb_rule_endpoints", "rule", "web", "checked", "true")
	w.Measures(0, "kiln_router_lb_rule_endpoints", "rule", "web", "checked", "false")
	if rule.Status.Ports != "80/TCP" || rule.Status.Service != "default/rlr-web" {
		t.Errorf("the status is %+v", rule.Status)
	}
	// Both kinds of rules share the source address of health checks.
	w.Create(newRule("other", "172.30.0.2", static("10.16.0.20")))
	w.owns("web:other,web")

	w.Change(rule, func() { rule.Spec.SessionAffinity, rule.Spec.Ports[0].Port = "", 81 })
	w.servesRouter("web", at81(frontToBoth))
	w.Eventually(func() string {
		if w.Get(s); s.Spec.Ports[0].Port != 81 || s.Spec.SessionAffinity != corev1.ServiceAffinityNone {
			return fmt.Sprintf("the Service is %+v", s.Spec)
		}
		return ""
	})
	w.Change(rule, func() { rule.Spec.Ports[0].Port = 80 })
	for family, slice := range list {
		w.Change(slice, func() { slice.Endpoints = endpointsOf(family, []port{b}) })
	}
	w.servesRouter("web", "10.99.0.10:80=10.16.0.21:8080 [fd00:10:99::10]:80=[fd00:10:16::15]:8080 | "+
		"10.16.0.21=b.default@web [fd00:10:16::15]=b.default@web | 10.99.0.10:80 [fd00:10:99::10]:80")

	// A deleted OvnEip exists, and the rule is served, until the rule is deleted.
	w.Delete(eip)
	second.Stop()
	third := w.start(a, b)
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	third.Stop()
	w.Delete(rule)
	w.start(a, b)
	w.servesRouter("web", "")
	w.Eventually(func() string {
		if w.Get(eip) {
			return fmt.Sprintf("OvnEip front is there: %+v", eip.Status)
		}
		return ""
	})
}

func TestEndpointsOfRouterLBRulesArePublished(t *testing.T) {
	w := newWorld(t)
	w.external()
	w.start(a)
	w.Create(front("front"))
	rule := newRouterRule("static", "front", to("10.16.0.20", "192.0.2.9", "10.16.0.20", "fd00:10:16::99"))
	w.Create(rule)
	w.exposed("rlr-static", frontV4, frontV6)
	w.Eventually(func() string {
		return w.endpointsMatch("rlr-static", "IPv4 10.16.0.20 192.0.2.9:8080; IPv6 fd00:10:16::99:8080")
	})
	w.Says(rule, kubeovnv1.ConditionEndpointsChecked, metav1.ConditionFalse, "1 of 3 endpoints are checked")
	w.Change(rule, func() { rule.Spec.Endpoints = []string{"10.16.0.20"} })
	w.servesRouter("static", frontToA)
	w.Eventually(func() string { return w.endpointsMatch("rlr-static", "IPv4 10.16.0.20:8080") })
	w.Change(rule, func() { rule.Spec.Ports[0].TargetPort = 9090 })
	w.Eventually(func() string { return w.endpointsMatch("rlr-static", "IPv4 10.16.0.20:9090") })

	// Changes by other clients are reverted.
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "rlr-static-ipv4-0"}}
	w.Get(slice)
	w.Change(slice, func() { slice.Endpoints = nil })
	w.Eventually(func() string { return w.endpointsMatch("rlr-static", "IPv4 10.16.0.20:9090") })
	w.Delete(slice)
	w.Eventually(func() string { return w.endpointsMatch("rlr-static", "IPv4 10.16.0.20:9090") })
	before := w.served("rlr-static")
	for uuid := range w.Database.Rows("Load_Balancer") {
		w.Database.Transact(nbtest.Op{"op": "delete", "table": "Load_Balancer", "where": []any{[]any{"_uuid", "==", []any{"uuid", uuid}}}})
	}
	w.servesRouter("static", before)
	s := w.exposed("rlr-static", frontV4, frontV6)
	w.Change(s, func() { s.Spec.ExternalIPs = []string{"192.0.2.200"} })
	w.exposed("rlr-static", frontV4, frontV6)

	// Switch from endpoints to pods, and to another VPC and back.
	w.Change(rule, func() { rule.Spec.Selector, rule.Spec.Endpoints = []string{"app:web"}, nil })
	w.Eventually(func() string { return w.endpointsMatch("rlr-static", "") })
	w.exposed("rlr-static", frontV4, frontV6)
	w.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}})
	w.Change(rule, func() { rule.Spec.VPC = "tenant" })
	w.Eventually(func() string {
		if w.Get(s); s.Spec.ClusterIP != corev1.ClusterIPNone || len(s.Spec.ExternalIPs) > 0 {
			return fmt.Sprintf("nodes serve endpoints of another VPC: %+v", s.Spec)
		}
		return ""
	})
	w.Change(rule, func() { rule.Spec.VPC = "" })
	w.exposed("rlr-static", frontV4, frontV6)
}

// endpointsMatch compares the EndpointSlices of a Service that the controller writes with want. It returns "" if they are equal.
func (w world) endpointsMatch(service, want string) string {
	w.Helper()
	var list discoveryv1.EndpointSliceList
	w.Must(w.Client.List(w.Context(), &list))
	var parts []string
	for _, s := range list.Items {
		if s.Labels[discoveryv1.LabelServiceName] != service || s.Labels[discoveryv1.LabelManagedBy] == "" {
			continue
		}
		text := string(s.AddressType)
		for _, e := range s.Endpoints {
			text += " " + e.Addresses[0]
		}
		parts = append(parts, fmt.Sprintf("%s:%d", text, *s.Ports[0].Port))
	}
	slices.Sort(parts)
	if got := strings.Join(parts, "; "); got != want {
		return fmt.Sprintf("the EndpointSlices have %s, want %s", got, want)
	}
	return ""
}

func TestRouterLBRulesOfCustomVPCs(t *testing.T) {
	w := newWorld(t)
	theirs := port{"c", "theirs", 20}
	w.pods("tenant", theirs)
	w.external()
	process := w.start(theirs, a)
	eip := front("front")
	w.Create(eip)
	w.Ready(eip)
	rule := newRouterRule("before", "front", func(s *kubeovnv1.RouterLBRuleSpec) { s.VPC = "tenant" })
	w.Create(rule)
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionFalse, "Vpc tenant, which does not exist")
	w.Rests("routerlbrule")
	w.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}})
	if s := w.service("rlr-before"); s.Spec.ClusterIP != corev1.ClusterIPNone || len(s.Spec.ExternalIPs) > 0 {
		t.Errorf("the Service is %+v", s.Spec)
	}
	w.slicesOf("rlr-before", []discoveryv1.EndpointPort{tcp("http", 8080)}, theirs)
	w.groupOf("rlr-before", "tenant")
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "for pods of VPC tenant; clients outside reach it if the VPC names the subnet of the OvnEip in extraExternalSubnets")

	ours := newRouterRule("ours", "front", to("10.16.0.20"), func(s *kubeovnv1.RouterLBRuleSpec) { s.Ports[0].Port = 81 })
	w.Create(ours)
	w.Says(ours, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "the older RouterLBRule before uses it for VPC tenant")
	w.servesRouter("ours", "")
	w.noService("rlr-ours")
	w.Delete(rule)
	w.servesRouter("ours", at81(frontToA))
	w.exposed("rlr-ours", frontV4, frontV6)

	// An OvnEip with an address of another subnet in the VPC would make that address unreachable there.
	process.Stop()
	w.Subnet("shadowed", func(s *kubeovnv1.SubnetSpec) { s.Vpc, s.CIDRBlock = "tenant", "10.99.0.0/24" })
	w.start(theirs, a)
	shadow := newRouterRule("shadow", "second", to("10.16.0.20"), func(s *kubeovnv1.RouterLBRuleSpec) { s.VPC = "tenant" })
	w.Create(shadow, &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "second"}})
	w.Says(shadow, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "is in subnet shadowed of VPC tenant as well")
}

func TestRulesWaitForTheirNamespace(t *testing.T) {
	w := newWorld(t)
	w.external()
	w.start(a)
	namespace := "late-" + rand.String(8) // no controller deletes namespaces in this test
	router := newRouterRule("web", "front", func(s *kubeovnv1.RouterLBRuleSpec) { s.Namespace = namespace })
	other := newRule("web", "172.30.0.1", func(s *kubeovnv1.SwitchLBRuleSpec) { s.Namespace = namespace })
	w.Create(front("front"), router, other)
	w.Says(router, kubeovnv1.ConditionReady, metav1.ConditionFalse, "waiting for namespace "+namespace)
	w.Says(other, kubeovnv1.ConditionReady, metav1.ConditionFalse, "waiting for namespace "+namespace)
	w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	w.Says(router, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	w.Says(other, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	if router.Status.Service != namespace+"/rlr-web" || other.Status.Service != namespace+"/slr-web" {
		t.Errorf("the Services are %s and %s", router.Status.Service, other.Status.Service)
	}
}

func TestWrongRouterLBRules(t *testing.T) {
	w := newWorld(t)
	w.external()
	w.start(a)
	w.Create(front("front"), &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "port"}, Spec: kubeovnv1.OvnEipSpec{Type: "lrp"}})
	for name, c := range map[string]struct {
		rule *kubeovnv1.RouterLBRule
		text string
	}{
		"no-eip":   {newRouterRule("no-eip", ""), "ovnEip is empty"},
		"type":     {newRouterRule("type", "port"), "is of type lrp"},
		"nobody":   {newRouterRule("nobody", "front", to()), "neither selector nor endpoints"},
		"loopback": {newRouterRule("loopback", "front", to("127.0.0.1")), "127.0.0.1 is not an address of a host"},
		"no-ports": {newRouterRule("no-ports", "front", func(s *kubeovnv1.RouterLBRuleSpec) { s.Ports = nil }), "ports is empty"},
	} {
		w.Create(c.rule)
		w.Says(c.rule, kubeovnv1.ConditionValidated, metav1.ConditionFalse, c.text)
		w.Says(c.rule, kubeovnv1.ConditionReady, metav1.ConditionFalse, c.text)
		w.servesRouter(name, "")
	}
	// Invalid rules hold no addresses, although most are older, at least by the order of names.
	right := newRouterRule("right", "front", to("10.16.0.20"))
	w.Create(right)
	w.servesRouter("right", frontToA)
	w.Says(right, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	w.Change(right, func() { right.Spec.Ports = nil })
	w.Says(right, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "ports is empty")
	w.servesRouter("right", frontToA) // the previous configuration stays
	w.exposed("rlr-right", frontV4, frontV6)
	younger := newRouterRule("younger", "front", to("10.16.0.20"))
	w.Create(younger)
	w.Says(younger, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "the older RouterLBRule right has 10.99.0.10 80/TCP")
	w.Change(younger, func() { younger.Spec.Ports[0].Port = 81 })
	w.servesRouter("younger", at81(frontToA))
}
