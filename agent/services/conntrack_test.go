// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services_test

import (
	"net"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/services"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// Changes of a Service that waits for an address do not affect the clients of the Service that has the address.
func TestConflictingServiceDoesNotEndConnections(t *testing.T) {
	w := newWorld(t)
	a, b, c := w.pod("a", 2), w.pod("b", 3), w.pod("c", 4)
	external := func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"192.0.2.86"} }
	w.service("holder", external)
	w.serves("holder", here(a), here(b))
	w.expect(w.far, "udp", at("192.0.2.86", 80), joinIPs[0].Addr(), "a", "b")
	conflicting := w.service("waiting", external)
	w.serves("waiting", here(a))
	w.expect(nil, "udp", clusterIP(conflicting), nodeIPs[0].Addr(), "a")
	var connection net.Conn
	must.Succeed(t, w.far.Do(func(ns.NetNS) (err error) {
		connection, err = net.Dial("udp", "192.0.2.86:80")
		return err
	}))
	t.Cleanup(func() { _ = connection.Close() })
	first, err := talk(connection, "udp", patience)
	must.Succeed(t, err)
	for i := range 20 { // several rounds, because a newly drawn endpoint may by chance be the same one
		w.serves("waiting", here([]*pod{c, a}[i%2]))
		w.expect(nil, "udp", clusterIP(conflicting), nodeIPs[0].Addr(), []string{"c", "a"}[i%2])
		if now, err := talk(connection, "udp", patience); err != nil || now != first {
			t.Fatalf("a client of the holder had %q and has %q, %v", first, now, err)
		}
	}
}

// A UDP client that keeps its source port is not served at an address that the Service has exchanged for another one.
func TestUDPConnectionsEndWithTheirAddress(t *testing.T) {
	nothing := func(*world) {}
	for name, around := range map[string]struct{ before, after func(*world) }{
		"after a write":        {nothing, nothing},
		"after a failed write": {func(w *world) { nodetest.NFT(w, "delete table inet "+services.Table) }, nothing},
		"while no proxy ran":   {func(w *world) { w.stop() }, func(w *world) { w.start() }},
	} {
		t.Run(name, func(t *testing.T) { connectionsEndWithTheirAddress(t, around.before, around.after) })
	}
}

// connectionsEndWithTheirAddress calls before and after at each exchange of an address.
func connectionsEndWithTheirAddress(t *testing.T, before, after func(*world)) {
	t.Helper()
	w := newWorld(t)
	a := w.pod("a", 2)
	s := w.service("moved", func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"192.0.2.87", "2001:db8::87"} })
	w.serves("moved", here(a))
	for i, to := range []string{"192.0.2.88", "2001:db8::88"} {
		from := at(s.Spec.ExternalIPs[i], 80)
		w.expect(w.far, "udp", from, joinIPs[i].Addr(), "a")
		var connection net.Conn
		must.Succeed(t, w.far.Do(func(ns.NetNS) (err error) {
			connection, err = net.Dial("udp", from.String())
			return err
		}))
		t.Cleanup(func() { _ = connection.Close() })
		if _, err := talk(connection, "udp", patience); err != nil {
			t.Fatal(err)
		}
		before(w)
		base := s.DeepCopy()
		s.Spec.ExternalIPs[i] = to
		must.Succeed(t, w.client.Patch(t.Context(), s, client.MergeFrom(base)))
		after(w)
		w.expect(w.far, "udp", at(to, 80), joinIPs[i].Addr(), "a")
		w.eventually(func() string {
			if text, err := talk(connection, "udp", shortly); err == nil {
				return from.String() + " is still served: " + text
			}
			return ""
		})
	}
}
