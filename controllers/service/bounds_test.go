// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package service_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/service"
	"github.com/kiln-net/kiln/internal/serving/budget"
	"github.com/kiln-net/kiln/internal/svc"
)

// endpointsOf returns n addresses.
func endpointsOf(n int) []string {
	var addresses []string
	for i := range n {
		addresses = append(addresses, fmt.Sprintf("10.16.0.%d", 2+i))
	}
	return addresses
}

// hasVIP waits until a load balancer has the VIP 192.0.2.1:53, or has it not.
func hasVIP(w *controllertest.World, name string, want bool) {
	w.Helper()
	w.Eventually(func() string {
		has := false
		for _, row := range w.Database.Rows("Load_Balancer") {
			if row["name"] == name {
				_, has = row["vips"].(map[string]string)["192.0.2.1:53"]
			}
		}
		if has != want {
			return fmt.Sprintf("%s has the address: %t, want %t", name, has, want)
		}
		return ""
	})
}

// TestServicesThatExceedABoundAreNotServed: the oldest Services of a namespace count first; the name decides between Services of one second.
// Without endpoints each of these costs 32 flows.
func TestServicesThatExceedABoundAreNotServed(t *testing.T) {
	before := svc.Bounds
	svc.Bounds = budget.Bounds{Object: 100, Group: 120} // the Service of the API server may be in the namespace, too
	w := controllertest.New(t)
	process := w.Start(steps)
	t.Cleanup(func() { process.Stop(); svc.Bounds = before })
	a, b, c, d, large := newService("a"), newService("b"), newService("c"), newService("d"), newService("large")
	d.Spec.ExternalIPs = []string{"192.0.2.1"}
	w.Create(a, b, c)
	for _, s := range []*corev1.Service{a, b, c} {
		reached(w, s, nil, nil)
	}
	w.Create(newSlice("large", "large-a", endpointsOf(40)...), large)
	warned(w, large, service.ReasonTooLarge, "the Service is not served: it would cost each node 112 flows, more than 100: divide it, or use fewer ports, addresses or endpoints")
	balanced(w, "large", nil)
	w.Create(d)
	warned(w, d, service.ReasonTooLarge, "the Service is not served: with its 64 flows the Services of namespace default in Vpc ovn-cluster would cost each node more than 120 flows")
	balanced(w, "d", nil)

	// A Service that is not served takes no address from others.
	other := newService("e")
	other.Namespace, other.Spec.ExternalIPs = "elsewhere", d.Spec.ExternalIPs
	w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "elsewhere"}}, other)
	hasVIP(w, "elsewhere/e/tcp", true)

	process.Stop()
	process = w.Start(steps)
	hasVIP(w, "elsewhere/e/tcp", true)
	if n := process.Transactions(); n != 0 {
		t.Errorf("%d transactions after a restart", n)
	}

	slice := newSlice("a", "a-a", endpointsOf(13)...) // 26 flows more for a
	w.Create(slice)
	balanced(w, "c", nil)
	w.Change(slice, func() { slice.Endpoints = nil })
	reached(w, c, nil, nil)
	w.Delete(a)
	w.Delete(b) // which makes room for d
	front := []string{"192.0.2.1:53"}
	reached(w, d, front, front)
	hasVIP(w, "elsewhere/e/tcp", false)
	reached(w, c, nil, nil)
	balanced(w, "large", nil)
}

// After a restart, a Service may be within the bounds again before its first reconciliation. The younger Service at its address withdraws.
func TestARestoredRefusalThatEndsTakesItsAddress(t *testing.T) {
	before := svc.Bounds
	svc.Bounds = budget.Bounds{Group: 120} // the Service of the API server may be in the namespace, too
	w := controllertest.New(t)
	w.DiffersFromFresh("the steps of the last process delete Services")
	process := w.Start(steps)
	t.Cleanup(func() { process.Stop(); svc.Bounds = before })
	a, b, c, refused, other := newService("a"), newService("b"), newService("c"), requesting("d", "192.0.2.1"), requesting("e", "192.0.2.1")
	w.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "younger"}}, a, b, c, refused)
	other.Namespace = "younger"
	w.Create(other)
	warned(w, refused, service.ReasonTooLarge, "the Service is not served")
	hasVIP(w, "younger/e/tcp", true)
	process.Stop()
	process = w.Start(stepsThen(func() {
		w.Delete(a)
		w.Delete(b)
	}))
	front := []string{"192.0.2.1:53"}
	reached(w, refused, front, front)
	hasVIP(w, "younger/e/tcp", false)
}

// TestPodsThatDoNotExistAreReadSeldom: EndpointSlices may name thousands of them.
func TestPodsThatDoNotExistAreReadSeldom(t *testing.T) {
	w := controllertest.New(t)
	reads := 0
	s := newService("s")
	slice := newSlice("s", "s-a", endpointsOf(200)...)
	for i := range slice.Endpoints {
		slice.Endpoints[i].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: fmt.Sprint("pod-", i)}
	}
	w.Create(s, slice)
	w.Start(controllertest.Steps{Setup: func(ctx context.Context, p *controllertest.Process) error {
		return p.Run(ctx, &service.Reconciler{
			Client: p.Client, Live: counting{p.Manager.GetAPIReader(), &reads}, Services: p.Services, Grants: p.Grants, Northbound: p.Engine,
			Allocator: p.Allocator, Networks: p.Networks, Recorder: p.Recorder, Gate: p.Gate, Workers: 1,
		})
	}})
	w.Eventually(func() string {
		for _, row := range w.Database.Rows("Load_Balancer") {
			if row["name"] == "default/s/tcp" {
				return ""
			}
		}
		return "the Service is not served"
	})
	if reads > 32 { // in two passes at most
		t.Errorf("%d pods were read from the API server", reads)
	}
}

// counting counts the reads of a reader.
type counting struct {
	client.Reader
	reads *int
}

func (c counting) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	*c.reads++
	return c.Reader.Get(ctx, key, o, options...)
}
