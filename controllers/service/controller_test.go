// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"context"
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/service"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

func TestMain(m *testing.M) { controllertest.MainDualStack(m) }

// steps run a reconciler that restores the costs of Services before it applies any, as kube-ovn-controller does.
var steps = stepsThen(func() {})

// stepsThen are steps that call a function between Restore and the first reconciliation.
func stepsThen(then func()) controllertest.Steps {
	return stepsWith(func(*service.Reconciler) {}, then)
}

// stepsWith are steps of a reconciler that a function changes.
func stepsWith(change func(*service.Reconciler), then func()) controllertest.Steps {
	var r *service.Reconciler
	return controllertest.Steps{
		Setup: func(ctx context.Context, p *controllertest.Process) error {
			r = &service.Reconciler{
				Client: p.Client, Live: p.Manager.GetAPIReader(), Services: p.Services, Grants: p.Grants, Northbound: p.Engine,
				Allocator: p.Allocator, Networks: p.Networks, Recorder: p.Recorder, Gate: p.Gate, Workers: 4,
			}
			change(r)
			return p.Run(ctx, r)
		},
		Restore: func(ctx context.Context, _ *controllertest.Process) error {
			defer then()
			return r.Restore(ctx)
		},
	}
}

func newService(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP},
			{Name: "dns-tcp", Port: 53, Protocol: corev1.ProtocolTCP},
		}},
	}
}

func newSlice(service, name string, addresses ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("dns"), Port: new(int32(5353)), Protocol: new(corev1.ProtocolUDP)},
			{Name: new("dns-tcp"), Port: new(int32(5353)), Protocol: new(corev1.ProtocolTCP)},
		},
	}
	for _, a := range addresses {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{a}, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	return s
}

// balanced waits until the load balancers of a Service have these VIPs, each by the load balancer's name.
func balanced(w *controllertest.World, service string, want map[string]map[string]string) {
	w.Helper()
	w.Eventually(func() string {
		have := map[string]map[string]string{}
		for _, row := range w.Database.Rows("Load_Balancer") {
			name := row["name"].(string)
			for _, protocol := range []string{"tcp", "udp"} {
				if name == "default/"+service+"/"+protocol {
					have[protocol] = row["vips"].(map[string]string)
				}
			}
		}
		if !maps.EqualFunc(have, want, maps.Equal[map[string]string, map[string]string]) {
			return fmt.Sprintf("load balancers are %v, want %v", have, want)
		}
		return ""
	})
}

// The controller and the agents serve the same EndpointSlices: agents read none with the label of headless Services.
func TestSlicesOfHeadlessServicesAreNotServed(t *testing.T) {
	w := controllertest.New(t)
	w.Start(steps)
	labelled := newSlice("dns", "dns-a", "10.16.0.2")
	labelled.Labels[corev1.IsHeadlessService] = ""
	s := newService("dns")
	w.Create(labelled, newSlice("dns", "dns-b", "10.16.0.3"), s)
	vip := s.Spec.ClusterIP + ":53"
	balanced(w, "dns", map[string]map[string]string{"tcp": {vip: "10.16.0.3:5353"}, "udp": {vip: "10.16.0.3:5353"}})
}

func TestServicesAreBalanced(t *testing.T) {
	w := controllertest.New(t)
	process := w.Start(steps)
	s := newService("dns")
	w.Create(s)
	vip := s.Spec.ClusterIP + ":53"
	balanced(w, "dns", map[string]map[string]string{"tcp": {vip: ""}, "udp": {vip: ""}})
	w.RestoresRows("Service/default/dns")
	for _, row := range w.Database.Rows("Load_Balancer") {
		if row["options"].(map[string]string)["reject"] != "true" {
			t.Errorf("the load balancer without endpoints does not reject connections: %v", row)
		}
	}

	w.Create(newSlice("dns", "dns-a", "10.16.0.3", "10.16.0.2"))
	second := newSlice("dns", "dns-b", "10.16.0.4")
	w.Create(second)
	all := "10.16.0.2:5353,10.16.0.3:5353,10.16.0.4:5353"
	balanced(w, "dns", map[string]map[string]string{"tcp": {vip: all}, "udp": {vip: all}})
	var group nbtest.Row
	for _, row := range w.Database.Rows("Load_Balancer_Group") {
		group = row
	}
	if n := len(group.Strings("load_balancer")); n < 2 {
		t.Errorf("the VPC's group has %d load balancers", n)
	}

	w.Delete(second)
	two := "10.16.0.2:5353,10.16.0.3:5353"
	balanced(w, "dns", map[string]map[string]string{"tcp": {vip: two}, "udp": {vip: two}})
	w.Change(s, func() { s.Spec.Ports = s.Spec.Ports[:1] })
	balanced(w, "dns", map[string]map[string]string{"udp": {vip: two}})

	before := process.Transactions()
	headless := newService("headless")
	headless.Spec.ClusterIP = corev1.ClusterIPNone
	w.Create(headless, newSlice("headless", "headless-a", "10.16.0.9"))
	last := newService("last")
	w.Create(last)
	balanced(w, "last", map[string]map[string]string{"tcp": {last.Spec.ClusterIP + ":53": ""}, "udp": {last.Spec.ClusterIP + ":53": ""}})
	balanced(w, "headless", map[string]map[string]string{})
	if n := process.Transactions() - before; n != 1 {
		t.Errorf("%d transactions for one Service", n)
	}
}

func TestServicesDeletedWhileTheControllerWasDown(t *testing.T) {
	w := controllertest.New(t)
	first := w.Start(steps)
	gone, kept := newService("gone"), newService("kept")
	w.Create(gone, kept)
	one, other := map[string]map[string]string{}, map[string]map[string]string{}
	for _, protocol := range []string{"tcp", "udp"} {
		one[protocol] = map[string]string{kept.Spec.ClusterIP + ":53": ""}
		other[protocol] = map[string]string{gone.Spec.ClusterIP + ":53": ""}
	}
	balanced(w, "kept", one)
	balanced(w, "gone", other)
	first.Stop()
	w.Delete(gone)
	second := w.Start(steps)
	balanced(w, "gone", map[string]map[string]string{})
	balanced(w, "kept", one)
	if n := second.Transactions(); n != 1 {
		t.Errorf("%d transactions to clean up after one Service", n)
	}
}

func TestServicesOfAnotherVpc(t *testing.T) {
	w := controllertest.New(t)
	w.Start(steps)
	s := newService("theirs")
	s.Annotations = map[string]string{"ovn.kubernetes.io/vpc": "tenant"}
	w.Create(s)
	other := newService("ours")
	w.Create(other)
	vips := func(s *corev1.Service) map[string]map[string]string {
		return map[string]map[string]string{"tcp": {s.Spec.ClusterIP + ":53": ""}, "udp": {s.Spec.ClusterIP + ":53": ""}}
	}
	balanced(w, "ours", vips(other))
	balanced(w, "theirs", map[string]map[string]string{})
	w.Change(s, func() { delete(s.Annotations, "ovn.kubernetes.io/vpc") })
	balanced(w, "theirs", vips(s))
}

// TestPodsReachAddressesOfLoadBalancers: OVN serves addresses with ipMode VIP, except with loadBalancerSourceRanges: nodes check the clients.
func TestPodsReachAddressesOfLoadBalancers(t *testing.T) {
	w := controllertest.New(t)
	w.Start(steps)
	s := newService("balancer")
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	w.Create(s, newSlice("balancer", "balancer-a", "10.16.0.2"))
	served := func(addresses ...string) {
		t.Helper()
		vips := map[string]string{}
		for _, a := range append(addresses, s.Spec.ClusterIP) {
			vips[a+":53"] = "10.16.0.2:5353"
		}
		balanced(w, "balancer", map[string]map[string]string{"tcp": vips, "udp": vips})
	}
	given := func(ingress ...corev1.LoadBalancerIngress) {
		t.Helper()
		w.Get(s)
		s.Status.LoadBalancer.Ingress = ingress
		w.Must(w.Client.Status().Update(w.Context(), s))
	}
	served()
	given(
		corev1.LoadBalancerIngress{IP: "198.51.100.7"}, // VIP is the default
		corev1.LoadBalancerIngress{IP: "198.51.100.8", IPMode: new(corev1.LoadBalancerIPModeVIP)},
		corev1.LoadBalancerIngress{IP: "198.51.100.9", IPMode: new(corev1.LoadBalancerIPModeProxy)},
		corev1.LoadBalancerIngress{Hostname: "dns.example.com"},
	)
	served("198.51.100.7", "198.51.100.8")
	w.Change(s, func() { s.Spec.LoadBalancerSourceRanges = []string{"10.16.0.0/16"} })
	served()
	w.Change(s, func() { s.Spec.LoadBalancerSourceRanges = nil })
	served("198.51.100.7", "198.51.100.8")
	given()
	served()
}
