// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services_test

import (
	"fmt"
	"net/netip"
	"regexp"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/agent/services"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// session returns the timeout of the element that records a client's endpoint, and the time until it expires; false if there is no such
// element.
func (w *world) session(front netip.AddrPort, from netip.Addr) (timeout, expires time.Duration, ok bool) {
	w.Helper()
	name := map[bool]string{false: "affinity4", true: "affinity6"}[from.Is6()]
	// knftables does not list the time until an element expires.
	out := nodetest.NFT(w, "list map inet "+services.Table+" "+name)
	key := fmt.Sprintf(`%s \. (?:tcp|6) \. %d \. %s `, regexp.QuoteMeta(front.Addr().String()), front.Port(), regexp.QuoteMeta(from.String()))
	found := regexp.MustCompile(key + `timeout (\S+) expires (\S+) :`).FindStringSubmatch(out)
	if found == nil {
		return 0, 0, false
	}
	timeout, err := time.ParseDuration(found[1])
	must.Succeed(w, err)
	expires, err = time.ParseDuration(found[2])
	must.Succeed(w, err)
	return timeout, expires, true
}

// stickyFor creates a Service with session affinity and returns its external addresses, one per family.
func (w *world) stickyFor(name string, seconds int32, addresses ...string) (fronts []netip.AddrPort) {
	w.Helper()
	w.service(name, func(s *corev1.ServiceSpec) {
		s.SessionAffinity, s.ExternalIPs = corev1.ServiceAffinityClientIP, addresses
		s.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	})
	for _, a := range addresses {
		fronts = append(fronts, at(a, 80))
	}
	return fronts
}

// TestSessionAffinityExpires checks that a client may get another endpoint after timeoutSeconds without a connection.
func TestSessionAffinityExpires(t *testing.T) {
	const timeout = 2 * time.Second
	w := newWorld(t)
	a, b, c := w.pod("a", 2), w.pod("b", 3), w.pod("c", 4)
	fronts := w.stickyFor("short", int32(timeout.Seconds()), "192.0.2.87", "2001:db8::87")
	w.serves("short", here(a), elsewhere(b), elsewhere(c))
	for i, front := range fronts {
		client, servers, listed := farIPs[i].Addr(), map[string]bool{}, false
		several := eventually.Wait{For: "several endpoints serve one client", Limit: patience, Base: 30 * time.Second}
		several.Empty(w, func() string { // a new session each time
			began := time.Now()
			got := w.ask(w.far, "tcp", front, shortly)
			if got.err != nil {
				return got.String()
			}
			if limit, _, ok := w.session(front, client); ok {
				if listed = true; limit != timeout {
					t.Errorf("%s: the session has a timeout of %s, want %s", front, limit, timeout)
				}
			}
			servers[got.server] = true
			ends := eventually.Wait{For: "the session expires", Limit: patience}
			ends.Holds(w, func() bool { _, _, ok := w.session(front, client); return !ok })
			if took := time.Since(began); took < timeout-100*time.Millisecond {
				t.Errorf("%s: the session expired after %s, want %s", front, took, timeout)
			}
			if len(servers) < 2 || !listed {
				return fmt.Sprintf("%s: served by %v, session listed: %t", front, servers, listed)
			}
			return ""
		})
	}
}

// TestConnectionsProlongSessions checks that each connection restarts the timeout of session affinity.
func TestConnectionsProlongSessions(t *testing.T) {
	const timeout = 1000 * time.Second
	w := newWorld(t)
	fronts := w.stickyFor("long", int32(timeout.Seconds()), "192.0.2.88", "2001:db8::88")
	w.serves("long", here(w.pod("a", 2)), elsewhere(w.pod("b", 3)))
	for i, front := range fronts {
		client, used := farIPs[i].Addr(), time.Duration(0)
		w.eventually(func() string { return errorText(w.ask(w.far, "tcp", front, shortly).err) })
		w.eventually(func() string {
			var limit time.Duration
			if limit, used, _ = w.session(front, client); limit != timeout || used > timeout-2*time.Second {
				return fmt.Sprintf("%s: the session has a timeout of %s and expires in %s", front, limit, used)
			}
			return ""
		})
		w.eventually(func() string {
			if got := w.ask(w.far, "tcp", front, shortly); got.err != nil {
				return got.String()
			}
			if _, left, _ := w.session(front, client); left <= used {
				return fmt.Sprintf("%s: the session expires in %s, before the connection it was %s", front, left, used)
			}
			return ""
		})
	}
}
