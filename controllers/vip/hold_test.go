// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vip_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
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

func TestAConflictIsReportedAndEndsByItself(t *testing.T) {
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

// Nodes and the API server can be hosts in the network of an underlay subnet.
func TestAVipOfAnUnderlaySubnetHasNoAddressOfAHost(t *testing.T) {
	w := newWorld(t)
	w.Subnet("office", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock, s.Vlan = "10.30.0.0/24,fd00:30::/120", "v" })
	record := w.Joined("n1", "100.64.0.2", "10.30.0.2", "fd00:30::2")
	server := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "api", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.30.0.3"}}},
	}
	w.Create(server)
	w.start()
	office := func(s *kubeovnv1.VipSpec) { s.Subnet = "office" }
	if got := w.ready(w.vip("free", office)); got != "10.30.0.4,fd00:30::3" {
		t.Errorf("the Vip has %s", got)
	}
	ofNode, ofServer := w.vip("node", office, at("", "fd00:30::2")), w.vip("server", office, at("10.30.0.3", ""))
	w.Says(ofNode, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "address fd00:30::2 is taken by node n1: create a Vip with another one, or free it")
	w.Says(ofServer, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "address 10.30.0.3 is taken by the API server")
	w.Delete(record, server)
	w.ready(ofNode)
	w.ready(ofServer)
}
