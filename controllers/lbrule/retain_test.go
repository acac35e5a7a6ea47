// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// stays is the end of the message of Ready while the last valid spec is served.
const stays = "the last valid spec stays applied"

// TestAnInvalidSwitchLBRuleStaysServed: its endpoints still follow the pods, and its rows come back when the northbound database is lost.
func TestAnInvalidSwitchLBRuleStaysServed(t *testing.T) {
	w := newWorld(t)
	w.pods(kubeovnv1.DefaultVpc, a, b)
	process := w.start(a, b)
	rule := newRule("web", "172.30.0.1,fd00:172::1")
	w.Create(rule)
	w.service("slr-web")
	list := w.slicesOf("slr-web", []discoveryv1.EndpointPort{tcp("http", 8080)}, a)
	w.serves("web", "172.30.0.1:80=10.16.0.20:8080 [fd00:172::1]:80=[fd00:10:16::14]:8080 | "+
		"10.16.0.20=a.default@web [fd00:10:16::14]=a.default@web | 172.30.0.1:80 [fd00:172::1]:80")
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")

	w.Change(rule, func() { rule.Spec.Ports, rule.Spec.Selector = nil, []string{"app: other"} })
	w.Says(rule, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "ports is empty")
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionFalse, "ports is empty", stays)
	for family, slice := range list {
		w.Change(slice, func() { slice.Endpoints = endpointsOf(family, []port{b}) })
	}
	const toB = "172.30.0.1:80=10.16.0.21:8080 [fd00:172::1]:80=[fd00:10:16::15]:8080 | " +
		"10.16.0.21=b.default@web [fd00:10:16::15]=b.default@web | 172.30.0.1:80 [fd00:172::1]:80"
	w.serves("web", toB)
	w.RestoresRows("SwitchLBRule//web")
	process.Stop()
	w.Database = nbtest.Start(t)
	w.start(a, b)
	w.serves("web", toB)
	if s := w.service("slr-web"); s.Spec.Selector["app"] != "web" || len(s.Spec.Ports) != 1 {
		t.Errorf("the Service is %+v", s.Spec)
	}
}

// TestASwitchLBRuleKeepsItsAddressUntilItsNewOneIsFree: a change to an address of others takes neither the old address nor the pods from the rule.
func TestASwitchLBRuleKeepsItsAddressUntilItsNewOneIsFree(t *testing.T) {
	w := newWorld(t)
	w.pods(kubeovnv1.DefaultVpc, a, b)
	w.start(a, b)
	user := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "user"}, Spec: corev1.ServiceSpec{
		ExternalIPs: []string{"172.30.0.50"}, Ports: []corev1.ServicePort{{Port: 80}},
	}}
	rule := newRule("a-web", "10.16.0.100")
	w.Create(user, rule)
	w.service("slr-a-web")
	w.slicesOf("slr-a-web", []discoveryv1.EndpointPort{tcp("http", 8080)}, a)
	const served, held = "10.16.0.100:80=10.16.0.20:8080 | 10.16.0.20=a.default@web | 10.16.0.100:80", "slr-a-web-10-16-0-100:a-web web:a-web"
	w.serves("a-web", served)
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")

	stayed := func() {
		t.Helper()
		w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionFalse, stays)
		w.Rests("switchlbrule")
		w.serves("a-web", served)
		w.owns(held)
		if s := w.service("slr-a-web"); s.Spec.Selector["app"] != "web" {
			t.Errorf("the Service selects %v", s.Spec.Selector)
		}
	}
	w.Change(rule, func() { rule.Spec.VIP, rule.Spec.Selector = "10.16.0.101,fd00:10:16::14", []string{"app:other"} }) // the second one is pod a's
	w.Says(rule, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "fd00:10:16::14 of subnet web is taken by a.default")
	stayed()
	w.Change(rule, func() { rule.Spec.VIP = "172.30.0.50" })
	w.Says(rule, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "Service default/user has 172.30.0.50 80/TCP")
	stayed()
	younger := newRule("b-younger", "10.16.0.100", static("10.16.0.21"))
	w.Create(younger)
	w.Says(younger, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "the older SwitchLBRule a-web has 10.16.0.100 80/TCP")

	w.Delete(user)
	w.serves("a-web", "172.30.0.50:80=10.16.0.20:8080 | 10.16.0.20=a.default@web | 172.30.0.50:80")
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	w.serves("b-younger", "10.16.0.100:80=10.16.0.21:8080 | 10.16.0.21=b.default@web | 10.16.0.100:80")
	if s := w.service("slr-a-web"); s.Spec.Selector["app"] != "other" {
		t.Errorf("the Service selects %v", s.Spec.Selector)
	}

	// A change takes no address from a rule that is served, even if it is younger.
	w.Change(rule, func() { rule.Spec.VIP = "10.16.0.100" })
	w.Says(rule, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "SwitchLBRule b-younger has 10.16.0.100 80/TCP")
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionFalse, stays)
	w.Rests("switchlbrule")
	w.Says(younger, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	w.Change(younger, func() { younger.Spec.VIP = "10.16.0.102" })
	w.serves("a-web", "10.16.0.100:80=10.16.0.20:8080 | 10.16.0.20=a.default@web | 10.16.0.100:80")
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	w.Change(rule, func() { rule.Spec.VIP = "172.30.0.50" })
	w.serves("a-web", "172.30.0.50:80=10.16.0.20:8080 | 10.16.0.20=a.default@web | 172.30.0.50:80")
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "") // and recorded as the last valid spec

	// The address of a rule whose current and last valid spec conflict is withdrawn.
	w.Change(rule, func() { rule.Spec.Ports = nil })
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionFalse, stays)
	user.ResourceVersion = ""
	w.Create(user)
	w.serves("a-web", "")
}

// TestAnInvalidRouterLBRuleStaysServed: the same for a rule whose OvnEip does not exist.
func TestAnInvalidRouterLBRuleStaysServed(t *testing.T) {
	w := newWorld(t)
	w.external()
	process := w.start(a)
	eip := front("front")
	rule := newRouterRule("web", "front", to("10.16.0.20"))
	w.Create(eip, rule)
	w.servesRouter("web", frontToA)
	w.exposed("rlr-web", frontV4, frontV6)
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")

	w.Change(rule, func() { rule.Spec.OvnEip, rule.Spec.Endpoints = "frnt", []string{"10.16.0.21"} })
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionFalse, "waiting for OvnEip frnt, which does not exist", stays)
	process.Stop()
	w.Database = nbtest.Start(t)
	w.start(a)
	w.servesRouter("web", frontToA)
	w.exposed("rlr-web", frontV4, frontV6)
	w.Delete(eip)
	w.Says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, "RouterLBRule web")
	w.Rests("routerlbrule")
	w.Eventually(func() string { return w.endpointsMatch("rlr-web", "IPv4 10.16.0.20:8080") })

	w.Change(rule, func() { rule.Spec.OvnEip, rule.Spec.Ports = "front", nil })
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionFalse, "ports is empty", stays)
	w.RestoresRows("RouterLBRule//web")
	w.servesRouter("web", frontToA)

	// An OvnEip that is free again is free for its deletion.
	other := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "frnt"}, Spec: kubeovnv1.OvnEipSpec{V4IP: "10.99.0.11"}}
	w.Create(other)
	w.Change(rule, func() { rule.Spec.OvnEip, rule.Spec.Ports = "frnt", []kubeovnv1.LBRulePort{{Port: 80}} })
	w.servesRouter("web", "10.99.0.11:80=10.16.0.21:80 |  | ")
	w.Eventually(func() string {
		if w.Get(eip) {
			return fmt.Sprintf("OvnEip front is there: %+v", eip.Status)
		}
		return ""
	})
}

// TestARuleMovesToOtherPodsOfAnotherVPC: the EndpointSlices of the old selector decide nothing about a spec with another selector.
func TestARuleMovesToOtherPodsOfAnotherVPC(t *testing.T) {
	w := newWorld(t)
	w.external()
	w.pods(kubeovnv1.DefaultVpc, a)
	other := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: b.name, Labels: map[string]string{"app": "other"}, Annotations: map[string]string{kubeovnv1.AnnotationLogicalRouter.Key(): "tenant"},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	w.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}}, other)
	w.start(a, b)
	router, switched := newRouterRule("router", "front"), newRule("switched", "172.30.0.1")
	w.Create(front("front"), router, switched)
	for _, service := range []string{"rlr-router", "slr-switched"} {
		w.service(service)
		w.slicesOf(service, []discoveryv1.EndpointPort{tcp("http", 8080)}, a)
	}
	w.Says(router, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	w.Says(switched, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	// In the VPC of the old pods, the rule's new address has another user.
	user := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "user"}, Spec: corev1.ServiceSpec{
		ExternalIPs: []string{"172.30.0.50"}, Ports: []corev1.ServicePort{{Port: 80}},
	}}
	w.Create(user)
	w.Change(switched, func() { switched.Spec.VIP, switched.Spec.Namespace = "172.30.0.2", "missing" })
	w.Says(switched, kubeovnv1.ConditionReady, metav1.ConditionFalse, "waiting for namespace missing, which does not exist", stays)
	w.service("slr-switched")
	w.Change(router, func() { router.Spec.VPC, router.Spec.Selector = "tenant", []string{"app:other"} })
	w.Change(switched, func() {
		switched.Spec.VIP, switched.Spec.Namespace, switched.Spec.Selector = "172.30.0.50", "", []string{"app:other"}
	})
	for _, service := range []string{"rlr-router", "slr-switched"} {
		w.Eventually(func() string {
			if s := w.service(service); s.Spec.Selector["app"] != "other" {
				return fmt.Sprintf("Service %s selects %v", service, s.Spec.Selector)
			}
			return ""
		})
	}
}
