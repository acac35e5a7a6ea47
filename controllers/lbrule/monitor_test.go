// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule_test

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/internal/address/ipam"
)

func TestEndpointsAreCheckedOnceSomethingHasThem(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	rule := newRule("static", "172.30.0.1", static("10.16.0.20", "192.0.2.9"))
	w.Create(rule)
	w.serves("static", "172.30.0.1:80=10.16.0.20:8080,192.0.2.9:8080 |  | ")
	w.Says(rule, kubeovnv1.ConditionEndpointsChecked, metav1.ConditionFalse, "0 of 2 endpoints are checked")
	w.owns("")
	_, err := process.Allocator.Allocate("a.default", ipam.Request{Subnet: "web", Addresses: []netip.Addr{netip.MustParseAddr("10.16.0.20")}})
	w.Must(err)
	w.serves("static", "172.30.0.1:80=10.16.0.20:8080,192.0.2.9:8080 | 10.16.0.20=a.default@web | 172.30.0.1:80")
	w.Says(rule, kubeovnv1.ConditionEndpointsChecked, metav1.ConditionFalse, "1 of 2 endpoints are checked; others serve whether they answer or not: 192.0.2.9 is in no subnet")
	if rule.Status.Service != "" {
		t.Errorf("a rule with endpoints has Service %s", rule.Status.Service)
	}
	process.Allocator.Release("a.default")
	w.serves("static", "172.30.0.1:80=10.16.0.20:8080,192.0.2.9:8080 |  | ")
	w.owns("")

	// Switch from endpoints to pods and back: the Service is created and deleted.
	w.Change(rule, func() { rule.Spec.Selector, rule.Spec.Endpoints = []string{"app:web"}, nil })
	service := w.service("slr-static")
	w.serves("static", "172.30.0.1:80= |  | ")
	w.Get(rule)
	w.Change(rule, func() { rule.Spec.Selector, rule.Spec.Endpoints = nil, []string{"10.16.0.30"} })
	w.serves("static", "172.30.0.1:80=10.16.0.30:8080 |  | ")
	w.Eventually(func() string {
		if w.Get(service) {
			return "the Service is still there"
		}
		return ""
	})
}

// The invalid CIDR of a Subnet contains an endpoint in another Subnet, whose check stays.
func TestChecksStayWhileASubnetIsInvalid(t *testing.T) {
	w := world{controllertest.New(t)}
	w.Subnet("web", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = "10.16.0.0/25" })
	w.Subnet("theirs", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = "10.16.0.128/25" })
	w.start(a, port{"d", "theirs", 200})
	rule := newRule("web", "172.30.0.1", static("10.16.0.20", "10.16.0.200"))
	w.Create(rule)
	checked := func(port int) {
		w.serves("web", fmt.Sprintf("172.30.0.1:%d=10.16.0.20:8080,10.16.0.200:8080 | 10.16.0.200=d.default@theirs 10.16.0.20=a.default@web | 172.30.0.1:%d", port, port))
	}
	checked(80)
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	w.Get(subnet)
	w.Change(subnet, func() { subnet.Spec.CIDRBlock = "10.16.0.128/25" }) // no controller validates it
	w.Get(rule)
	w.Change(rule, func() { rule.Spec.Ports[0].Port = 81 })
	checked(81)
}

func TestAUserDefinedSourceIsUsedAndKept(t *testing.T) {
	w := newWorld(t)
	process := w.start(a)
	source := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: kubeovnv1.VipSpec{Subnet: "web", V4IP: "10.16.0.77"}}
	w.Create(source)
	w.Eventually(func() string {
		if process.Allocator.Holder("web", netip.MustParseAddr("10.16.0.77")) == "" {
			return "the user's Vip has no address"
		}
		return ""
	})
	rule := newRule("web", "172.30.0.1", static("10.16.0.20"))
	w.Create(rule)
	w.serves("web", "172.30.0.1:80=10.16.0.20:8080 | 10.16.0.20=a.default@web | 172.30.0.1:80")
	w.owns("web:")
	w.Delete(rule)
	w.serves("web", "")
	w.owns("web:")
}

// OVN answers ARP for the source of health checks, so a pod with the address of the Vip would lose its traffic.
func TestAVipOfPodsIsNoSourceOfHealthChecks(t *testing.T) {
	w := newWorld(t)
	w.start(a)
	vip := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: kubeovnv1.VipSpec{
		Subnet: "web", V4IP: "10.16.0.77", AllowedNamespaces: []kubeovnv1.AllowedNamespace{"default"},
	}}
	rule := newRule("web", "172.30.0.1", static("10.16.0.20"))
	w.Create(vip, rule)
	const unchecked = "172.30.0.1:80=10.16.0.20:8080 |  | "
	w.serves("web", "172.30.0.1:80=10.16.0.20:8080 | 10.16.0.20=a.default@web | 172.30.0.1:80")
	for _, annotation := range []kubeovnv1.Annotation{kubeovnv1.AnnotationVip, kubeovnv1.AnnotationAAPs} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "database", Annotations: map[string]string{annotation.Key(): "web"}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}
		w.Create(pod)
		w.serves("web", unchecked)
		w.Says(rule, kubeovnv1.ConditionEndpointsChecked, metav1.ConditionFalse, "but Vip web is for pod default/database: use another Vip for that")
		w.Delete(pod)
		w.serves("web", "172.30.0.1:80=10.16.0.20:8080 | 10.16.0.20=a.default@web | 172.30.0.1:80")
	}
	w.Get(vip)
	w.Change(vip, func() { vip.Spec.Type = kubeovnv1.VipTypeSwitchLB })
	w.serves("web", unchecked)
	w.Says(rule, kubeovnv1.ConditionEndpointsChecked, metav1.ConditionFalse, "but Vip web is of type switch_lb_vip")
	w.Get(vip)
	w.Change(vip, func() { vip.Spec.Type, vip.Spec.Namespace, vip.Spec.Selector = "", "default", []string{"app:db"} })
	w.serves("web", unchecked)
	w.Says(rule, kubeovnv1.ConditionEndpointsChecked, metav1.ConditionFalse, "but Vip web has a selector of pods")
}
