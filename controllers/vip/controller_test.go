// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vip_test

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// The allocator has the subnet's addresses before the subnet is validated, so only the subnet's own event can wake the Vip.
func TestAVipIsWokenByItsSubnet(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	v := w.vip("v", func(s *kubeovnv1.VipSpec) { s.Subnet = "soon" })
	w.Says(v, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "subnet soon does not exist")
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "soon"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.96.0.0/24", Gateway: "10.96.0.1"}}
	w.Create(subnet)
	w.Must(process.Allocator.SetSubnet("soon", ipam.Subnet{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")}}))
	w.Says(v, kubeovnv1.ConditionReady, metav1.ConditionFalse, "subnet soon is not validated yet")
	w.InForce(subnet)
	if got := w.ready(v); !strings.HasPrefix(got, "10.96.0.") {
		t.Errorf("the Vip has %s", got)
	}
}

func TestTheSubnetOfAVipCannotChange(t *testing.T) {
	w := newWorld(t)
	v := w.vip("v", at("10.16.0.9", ""))
	for text, change := range map[string]func(){
		`v4ip cannot change from "10.16.0.9" to "10.16.0.10": create another Vip`: func() { v.Spec.V4IP = "10.16.0.10" },
		"v6ip cannot change":       func() { v.Spec.V6IP = "fd00:10:16::9" },
		"macAddress cannot change": func() { v.Spec.MACAddress = "02:00:00:00:00:09" },
		"subnet cannot change":     func() { v.Spec.Subnet = "other" },
		"must be an IPv6 address":  func() { v.Spec.V6IP = "10.16.0.9" },
		"spec.selector[0]":         func() { v.Spec.Selector = []string{"app=web"} },
	} {
		base := v.DeepCopy()
		change()
		if err := w.Client.Patch(w.Context(), v, client.MergeFrom(base)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want one that says %q", err, text)
		}
		v = base
	}
	w.Change(v, func() { v.Spec.Selector, v.Spec.Namespace = []string{"app: web", "tier:"}, "default" })
}

func TestAPodHasTheAddressesOfAVipAlone(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	early := newPod("early", "vip", "v")
	w.Create(early)
	w.Event(early, eventsv1.Event{Type: corev1.EventTypeWarning, Note: "Vip v, which annotation ovn.kubernetes.io/vip names, does not exist"})
	v := w.vip("v", at("10.16.0.9", "fd00:10:16::9"), func(s *kubeovnv1.VipSpec) { s.MACAddress = "02:00:00:00:00:09" })
	if got := w.published(early); got != "10.16.0.9,fd00:10:16::9" || early.Annotations["ovn.kubernetes.io/mac_address"] != "02:00:00:00:00:09" {
		t.Errorf("the pod has %s and %v", got, early.Annotations)
	}
	late := newPod("late", "vip", "v")
	w.Create(late)
	w.Event(late, eventsv1.Event{Type: corev1.EventTypeWarning, Note: "10.16.0.9 is taken by early.default"})
	process.Stop()
	process = w.start()
	w.Must(w.Client.Delete(w.Context(), v))
	w.Says(v, kubeovnv1.ConditionReady, metav1.ConditionFalse, "pod default/early, pod default/late")
	w.Delete(early)
	w.Says(v, kubeovnv1.ConditionReady, metav1.ConditionFalse, "no longer used by pod default/late")
	w.Delete(late)
	w.Gone(v)
	allocation, held := process.Allocator.Lookup("vip/v")
	if held {
		t.Errorf("the deleted Vip holds %v", allocation)
	}
	w.pod("next", "ip_address", "10.16.0.9") // the address is free
}

func TestAVipComesBackFromThePodThatHadIt(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	v := w.vip("v", at("10.16.0.9", "fd00:10:16::9"))
	w.ready(v)
	one := w.pod("one", "vip", "v")
	for _, restart := range []bool{false, true} {
		if restart {
			process.Stop()
			w.Delete(one)
			process = w.start()
		} else {
			w.Delete(one)
		}
		other := newPod("other", "ip_address", "10.16.0.9") // the Vip's address never becomes free in between
		w.Create(other)
		w.Event(other, eventsv1.Event{Type: corev1.EventTypeWarning, Note: "10.16.0.9 is taken by"})
		one = w.pod("one", "vip", "v")
		if got := w.published(one); got != "10.16.0.9,fd00:10:16::9" {
			t.Errorf("the pod has %s", got)
		}
		w.Delete(other)
	}
	_ = process
}

func TestPodsMayNotUseEveryVip(t *testing.T) {
	w := newWorld(t)
	w.start()
	w.ready(w.vip("typed", func(s *kubeovnv1.VipSpec) { s.Type = kubeovnv1.VipTypeKubeHostVM }))
	w.ready(w.vip("foreign", func(s *kubeovnv1.VipSpec) { s.Namespace = "kube-system" }))
	w.vip("broken", at("10.99.0.1", ""))
	for name, text := range map[string]string{
		"typed": "of type kube_host_vm_vip", "foreign": "does not list namespace default: add it to allowedNamespaces of the Vip", "broken": "has no address yet",
	} {
		p := newPod(name, "vip", name)
		w.Create(p)
		w.Event(p, eventsv1.Event{Type: corev1.EventTypeWarning, Note: text})
	}
	p := w.pod("named", "aaps", "typed, foreign,missing")
	w.Event(p, eventsv1.Event{Type: corev1.EventTypeWarning, Note: "Vip typed is of type kube_host_vm_vip; Vip foreign does not list namespace default: add it to allowedNamespaces of the Vip; Vip missing does not exist"})
}

// TestAVipIsSharedByPodsOfListedNamespaces: another tenant's pod in the same subnet names the Vip.
func TestAVipIsSharedByPodsOfListedNamespaces(t *testing.T) {
	w := newWorld(t)
	w.start()
	v := w.vip("v", func(s *kubeovnv1.VipSpec) { s.AllowedNamespaces = []kubeovnv1.AllowedNamespace{"default"} })
	w.ready(v)
	w.pod("a", "aaps", "v")
	w.parents(v, "a.default")
	w.Change(v, func() { v.Spec.AllowedNamespaces = []kubeovnv1.AllowedNamespace{"other"} })
	w.parents(v, "")
	late := w.pod("b", "aaps", "v")
	w.Event(late, eventsv1.Event{Type: corev1.EventTypeWarning, Note: "Vip v does not list namespace default"})
	own := newPod("c", "vip", "v")
	w.Create(own)
	w.Event(own, eventsv1.Event{Type: corev1.EventTypeWarning, Note: "does not list namespace default"})
	w.Change(v, func() { v.Spec.AllowedNamespaces = nil })
	w.parents(v, "")
	w.Delete(own)
	w.Change(v, func() { v.Spec.AllowedNamespaces = []kubeovnv1.AllowedNamespace{kubeovnv1.AllNamespaces} })
	w.parents(v, "a.default,b.default")
}

// The namespace of a Vip may use the Vip's subnet. A Vip for every namespace grants nothing.
func TestAVipOfANamespaceGrantsItsSubnet(t *testing.T) {
	w := newWorld(t)
	w.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "blue"}})
	w.Subnet("blue-net", func(s *kubeovnv1.SubnetSpec) { s.Vpc, s.CIDRBlock = "blue", "10.17.0.0/24" })
	w.start()
	inBlue := func(s *kubeovnv1.VipSpec) { s.Subnet = "blue-net" }
	w.ready(w.vip("common", inBlue))
	own := w.vip("own", inBlue, func(s *kubeovnv1.VipSpec) { s.Namespace = "default" })
	w.ready(own)
	p := newPod("p", "vip", "common")
	w.Create(p)
	w.Event(p, eventsv1.Event{Type: corev1.EventTypeWarning, Note: "VPC blue does not list namespace default"})
	if got := w.published(w.pod("q", "vip", "own")); got != own.Status.V4IP {
		t.Errorf("the pod has %s, not the Vip's %s", got, own.Status.V4IP)
	}
}

func TestPodsShareAVip(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	v := w.vip("v", func(s *kubeovnv1.VipSpec) { s.Namespace = "default" })
	w.ready(v)
	w.parents(v, "")
	b := w.pod("b", "aaps", "v", "port_security", "true")
	a := w.pod("a", "aaps", "other,v", "port_security", "true")
	plain := w.pod("plain", "port_security", "true")
	w.parents(v, "a.default,b.default")
	w.passes(a, a.Annotations["ovn.kubernetes.io/ip_address"]+","+v.Status.V4IP+","+v.Status.V6IP)
	w.passes(plain, plain.Annotations["ovn.kubernetes.io/ip_address"])
	w.RestoresRows("Vip//v")

	process.Stop()
	process = w.start()
	w.parents(v, "a.default,b.default")
	w.settled(process, v)
	w.Database.Transact(nbtest.Op{
		"op": "update", "table": "Logical_Switch_Port", "where": []any{[]any{"name", "==", "v_IPv4"}},
		"row": map[string]any{"options": []any{"map", []any{}}},
	})
	w.parents(v, "a.default,b.default")

	w.Change(b, func() { delete(b.Annotations, "ovn.kubernetes.io/aaps") })
	w.parents(v, "a.default")
	w.passes(b, b.Annotations["ovn.kubernetes.io/ip_address"])
	process.Stop()
	w.Delete(a)
	w.start()
	w.parents(v, "")
	w.Change(b, func() { b.Annotations["ovn.kubernetes.io/aaps"] = "v" })
	w.parents(v, "b.default")
	w.passes(b, b.Annotations["ovn.kubernetes.io/ip_address"]+","+v.Status.V4IP+","+v.Status.V6IP)
	w.Must(w.Client.Delete(w.Context(), v))
	w.Says(v, kubeovnv1.ConditionReady, metav1.ConditionFalse, "pod default/b")
	w.parents(v, "b.default") // until its last user is removed
	w.Change(b, func() { delete(b.Annotations, "ovn.kubernetes.io/aaps") })
	w.Gone(v)
	w.passes(b, b.Annotations["ovn.kubernetes.io/ip_address"])
	w.parents(v, "")
}

// settled checks that a process which has just started changed nothing.
func (w world) settled(p *controllertest.Process, v *kubeovnv1.Vip) {
	w.Helper()
	w.ready(v)
	if n := p.Transactions(); n != 0 {
		w.Errorf("%d transactions after a restart", n)
	}
	for _, method := range []string{"PATCH", "POST", "PUT"} {
		if n := p.Writes(method, "/vips"); n != 0 {
			w.Errorf("%d %s of Vips after a restart", n, method)
		}
	}
}

func TestRowsOfADeletedVipAreDeleted(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	v := w.vip("v", func(s *kubeovnv1.VipSpec) { s.Namespace = "default" })
	w.ready(v)
	w.pod("b", "aaps", "v", "port_security", "true")
	w.parents(v, "b.default")
	process.Stop()
	w.Get(v)
	w.LetGo(v)
	w.Delete(v)
	w.start()
	w.NoRows("Vip//v")
}

func TestASelectorHasPodsShareAVip(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	web := newPod("web", "port_security", "true")
	web.Labels = map[string]string{"app": "web", "tier": "front"}
	back := newPod("back")
	back.Labels = map[string]string{"app": "web"}
	w.Create(web, back)
	w.published(web)
	v := w.vip("v", func(s *kubeovnv1.VipSpec) { s.Namespace, s.Selector = "default", []string{"app: web", "tier:front"} })
	w.ready(v)
	w.parents(v, "web.default")
	own := web.Annotations["ovn.kubernetes.io/ip_address"]
	w.passes(web, own+","+v.Status.V4IP+","+v.Status.V6IP)
	w.published(back)
	w.Change(back, func() { back.Labels["tier"] = "front" })
	w.parents(v, "back.default,web.default")
	process.Stop()
	w.Change(v, func() { v.Spec.Selector = []string{"app:web"} })
	w.Change(web, func() { web.Labels["app"] = "db" })
	w.start()
	w.parents(v, "back.default")
	w.passes(web, own)
	w.Change(v, func() { v.Spec.Selector = []string{"app:db"} })
	w.parents(v, "web.default")
	w.passes(web, own+","+v.Status.V4IP+","+v.Status.V6IP)
	w.Change(v, func() { v.Spec.Selector = []string{"app:" + strings.Repeat("x", 64)} }) // too long for a label
	cause := w.Says(v, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "selector")
	w.Says(v, kubeovnv1.ConditionReady, metav1.ConditionFalse, cause.Reason, cause.Message)
	w.parents(v, "web.default")
	w.Must(w.Client.Delete(w.Context(), v)) // pods that match the selector do not block the deletion
	w.Gone(v)
	w.parents(v, "")
	w.passes(web, own)
}

// TestAnInvalidVipKeepsThePodsThatShareIt, also after a restart with an empty northbound database.
func TestAnInvalidVipKeepsThePodsThatShareIt(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	web := newPod("web", "port_security", "true")
	web.Labels = map[string]string{"app": "web"}
	w.Create(web)
	w.published(web)
	v := w.vip("v", func(s *kubeovnv1.VipSpec) { s.Namespace, s.Selector = "default", []string{"app:web"} })
	w.ready(v)
	shared := web.Annotations["ovn.kubernetes.io/ip_address"] + "," + v.Status.V4IP + "," + v.Status.V6IP
	for _, change := range []func(){
		func() { v.Spec.Namespace = "" },
		func() { v.Spec.Namespace, v.Spec.Selector = "other", []string{"app:" + strings.Repeat("x", 64)} },
		func() {
			v.Spec.Namespace, v.Spec.Type, v.Spec.Selector = "", kubeovnv1.VipTypeSwitchLB, []string{"app:web"}
		},
	} {
		w.Change(v, change)
		w.Says(v, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "selector")
		w.Says(v, kubeovnv1.ConditionReady, metav1.ConditionFalse, "the last valid spec stays applied")
		w.Rests("vip")
		w.parents(v, "web.default")
		w.passes(web, shared)
	}
	process.Stop()
	w.Database = nbtest.Start(t)
	w.start()
	w.parents(v, "web.default")
	w.passes(web, shared)
	w.Change(v, func() { v.Spec.Selector = nil })
	w.parents(v, "")
	w.Says(v, kubeovnv1.ConditionReady, metav1.ConditionTrue)
}

func TestAPodThatHasAVipAlonePrecedesPodsThatShareIt(t *testing.T) {
	w := newWorld(t)
	w.start()
	v := w.vip("v")
	w.ready(v)
	w.pod("shares", "aaps", "v")
	w.parents(v, "shares.default")
	owner := w.pod("owner", "vip", "v")
	w.Says(v, kubeovnv1.ConditionReady, metav1.ConditionFalse, "port owner.default has the addresses as its own")
	w.parents(v, "")
	w.Delete(owner)
	w.ready(v)
	w.parents(v, "shares.default")
}
