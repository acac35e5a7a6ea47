// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vip_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestAVipHoldsItsAddresses(t *testing.T) {
	w := newWorld(t)
	process := w.start()
	first := w.vip("first")
	if got := w.ready(first); got != "10.16.0.2,fd00:10:16::2" {
		t.Errorf("the Vip has %s", got)
	}
	chosen := w.vip("chosen", at("", "fd00:10:16::3"), func(s *kubeovnv1.VipSpec) {
		s.MACAddress, s.Type, s.Subnet = "02:00:00:00:00:09", kubeovnv1.VipTypeSwitchLB, "ovn-default"
	})
	if got := w.ready(chosen); got != "fd00:10:16::3" || chosen.Status.MAC != "02:00:00:00:00:09" || chosen.Status.Type != "switch_lb_vip" {
		t.Errorf("the Vip has %s and %+v", got, chosen.Status)
	}
	for _, restart := range []bool{false, true} {
		if restart {
			process.Stop()
			process = w.start()
		}
		asks := w.pod("asks-" + map[bool]string{false: "before", true: "after"}[restart])
		if got := w.published(asks); strings.HasPrefix(got, "10.16.0.2,") || strings.HasSuffix(got, "::2") || strings.HasSuffix(got, "::3") {
			t.Errorf("a pod has %s", got)
		}
		w.Delete(asks)
	}
	refused := newPod("refused", "ip_address", "10.16.0.2")
	w.Create(refused)
	w.Event(refused, eventsv1.Event{Type: corev1.EventTypeWarning, Note: "10.16.0.2 is taken by vip/first"})
	w.Must(w.Client.Delete(w.Context(), first))
	w.Gone(first)
	if got := w.published(refused); !strings.HasPrefix(got, "10.16.0.2,") {
		t.Errorf("the pod that waited has %s", got)
	}
}

func TestAConflictIsToldAndEndsByItself(t *testing.T) {
	w := newWorld(t)
	w.start()
	holder := w.pod("holder", "ip_address", "10.16.0.9")
	v := w.vip("v", at("10.16.0.9", "fd00:10:16::9"))
	w.Says(v, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "10.16.0.9 is taken by holder.default")
	w.Event(v, eventsv1.Event{Type: corev1.EventTypeWarning, Note: "taken by holder.default"})
	w.Delete(holder)
	if got := w.ready(v); got != "10.16.0.9,fd00:10:16::9" {
		t.Errorf("the Vip has %s", got)
	}
	second := w.vip("second", at("10.16.0.9", ""))
	w.Says(second, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "taken by vip/v")
	for name, c := range map[string]struct{ v4, subnet, text string }{
		"gateway":  {"10.16.0.1", "", "10.16.0.1 is taken by gateway"},
		"outside":  {"10.99.0.1", "", "not one that a port of subnet ovn-default"},
		"nodes":    {"", "join", "is for nodes"},
		"nowhere":  {"", "nowhere", "subnet nowhere does not exist"},
		"reserved": {"10.16.0.50", "", "taken by reserved.default"},
	} {
		if name == "reserved" {
			ip := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "reserved.default"}, Spec: kubeovnv1.IPSpec{Subnet: "ovn-default", V4IPAddress: "10.16.0.50"}}
			w.Create(ip)
			w.Eventually(func() string {
				if w.Get(ip); ip.Spec.IPAddress == "" {
					return "the IP object is not effective"
				}
				return ""
			})
		}
		v := w.vip(name, at(c.v4, ""), func(s *kubeovnv1.VipSpec) { s.Subnet = c.subnet })
		w.Says(v, kubeovnv1.ConditionValidated, metav1.ConditionFalse, c.text)
		w.Says(v, kubeovnv1.ConditionReady, metav1.ConditionFalse, "")
	}
}
