// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// TestFRRWithChangesOfBFD changes the intervals: the sessions continue.
func TestFRRWithChangesOfBFD(t *testing.T) {
	r := newPeerRouter(t, frrRange("bfd"))
	s := newServer(t)
	interval := 300 * time.Millisecond
	on := func(p *v1alpha1.SpeakerPeer) {
		p.BFD = &v1alpha1.BFD{MinTransmit: &metav1.Duration{Duration: interval}, MinReceive: &metav1.Duration{Duration: interval}}
	}
	must.Succeed(t, s.Announce(routesTo("10.16.0.0/16"), nil))
	must.Succeed(t, s.Configure(t.Context(), with(across(far4, on), across(far6, on))))
	r.steady(s)
	begins := r.endsAt(s)
	for _, interval = range []time.Duration{800 * time.Millisecond, 200 * time.Millisecond} {
		must.Succeed(t, s.Configure(t.Context(), with(across(far4, on), across(far6, on))))
		eventually.Wait{Base: 20 * time.Second}.Empty(t, func() string {
			var bfd []struct {
				Status         string
				RemoteTransmit int `json:"remote-transmit-interval"`
			}
			must.Succeed(t, json.Unmarshal([]byte(r.vtysh("show bfd peers json")), &bfd))
			for _, b := range bfd {
				if b.Status != "up" || b.RemoteTransmit != int(interval.Milliseconds()) {
					return fmt.Sprintf("the router has %+v, want intervals of %s", bfd, interval)
				}
			}
			return ""
		})
		if ends := r.endsAt(s); ends != begins {
			t.Errorf("with intervals of %s sessions ended: %s, before %s", interval, ends, begins)
		}
	}
}

func TestFRRWithBFD(t *testing.T) {
	for name, test := range map[string]struct {
		router routerDaemon
		runs   int
		begins string
	}{
		// FRR begins the sessions of listed neighbors again when it knows the addresses of the first ones.
		"with neighbors in a list": {frrWith("bfd", "password right"), 10, "1 1"}, "with a range of neighbors": {frrRange("bfd", "password right"), 5, "0 0"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newPeerRouter(t, test.router)
			s := newServer(t)
			bfd := func(p *v1alpha1.SpeakerPeer) {
				p.BFD, p.Password = &v1alpha1.BFD{}, &v1alpha1.SecretKey{Name: "s"}
			}
			spec := &v1alpha1.Speaker{ASN: 65001, Peers: []v1alpha1.SpeakerPeer{across(far4, bfd), across(far6, bfd)}}
			must.Succeed(t, s.Announce(routesTo("10.16.0.0/16", "fd00:10:16::/112"), nil))
			must.Succeed(t, s.Configure(t.Context(), ConfigOf(spec, testNode(map[string]string{"s": "right"}))))
			r.reaches("10.16.0.0/16", near4)
			r.steady(s)
			begins := r.endsAt(s)
			if begins > test.begins {
				t.Errorf("sessions ended before the first failure: %s", begins)
			}
			var cuts []time.Duration
			for range test.runs {
				r.steady(s)
				plug(t, farPort, false)
				cuts = append(cuts, r.reaches("10.16.0.0/16"))
				eventually.Wait{}.Empty(t, func() string {
					if r.endsAt(s) == begins {
						return "the speaker has not noticed the failure"
					}
					return ""
				})
				begins = r.endsAt(s)
				plug(t, farPort, true)
				r.reaches("10.16.0.0/16", near4)
			}
			t.Log("the router loses a node that is cut off, with BFD of 3 × 300 ms, after", summary(cuts))
			for _, took := range cuts {
				if took > 8*time.Second {
					t.Errorf("the router lost the node after %s, by its hold time", took)
				}
			}
		})
	}
}

func TestBIRDWithBFD(t *testing.T) {
	r := newPeerRouter(t, birdWith("  local as 65002;\n  passive;\n  bfd on;\n", ""))
	s := newServer(t)
	must.Succeed(t, s.Announce(routesTo("10.16.0.0/16"), nil))
	must.Succeed(t, s.Configure(t.Context(), with(across(far4, func(p *v1alpha1.SpeakerPeer) { p.BFD = &v1alpha1.BFD{} }))))
	for range 2 {
		r.reaches("10.16.0.0/16", near4)
		eventually.Wait{Base: 20 * time.Second}.Empty(t, func() string {
			state, err := s.State(t.Context())
			must.Succeed(t, err)
			if p := state.Peers[0]; p.BFD != "up" || !p.Established {
				return fmt.Sprintf("BFD is %s, and BGP %s", p.BFD, p.Session)
			}
			return ""
		})
		plug(t, farPort, false)
		t.Log("the router loses a node that is cut off after", r.reaches("10.16.0.0/16").Round(time.Millisecond))
		eventually.Wait{Base: 5 * time.Second}.Empty(t, func() string {
			state, err := s.State(t.Context())
			must.Succeed(t, err)
			if p := state.Peers[0]; p.Established || p.Live.State.BfdState.FailureTransitions == 0 {
				return "the speaker has not noticed the failure"
			}
			return ""
		})
		plug(t, farPort, true)
	}
}

// TestFRRWithBFDUnderLoad counts false failures while 16 processes are busy. A busy machine may have some, and the sessions must recover.
func TestFRRWithBFDUnderLoad(t *testing.T) {
	r := newPeerRouter(t, frrRange("bfd"))
	s := newServer(t)
	bfd := func(p *v1alpha1.SpeakerPeer) { p.BFD = &v1alpha1.BFD{} }
	must.Succeed(t, s.Configure(t.Context(), with(across(far4, bfd), across(far6, bfd))))
	r.steady(s)
	var busy []*exec.Cmd
	for range 16 {
		c := exec.Command("timeout", "45", "sh", "-c", "while :; do :; done") // a process, so that the load is the kernel's to share
		must.Succeed(t, c.Start())
		busy = append(busy, c)
	}
	for _, c := range busy {
		_ = c.Wait() // timeout(1) has ended it
	}
	t.Logf("false failures of two sessions in 45 s with 16 busy processes: the sessions ended %s times", r.endsAt(s))
	r.steady(s)
}

func TestFRRWithdrawsAtOnce(t *testing.T) {
	r := newPeerRouter(t, frrWith())
	s := newServer(t)
	must.Succeed(t, s.Announce(routesTo("10.16.0.0/16"), nil))
	must.Succeed(t, s.Configure(t.Context(), with(across(far4), across(far6))))
	r.reaches("10.16.0.0/16", near4)
	var withdrawals []time.Duration
	for range 20 {
		must.Succeed(t, s.Announce(routesTo("10.16.0.7/32"), nil))
		r.reaches("10.16.0.7/32", near4)
		must.Succeed(t, s.Announce(nil, prefixes("10.16.0.7/32")))
		withdrawals = append(withdrawals, r.reaches("10.16.0.7/32"))
	}
	t.Log("a withdrawal reaches the kernel of the router after", summary(withdrawals))
}

func TestFRRWithoutBFDWaitsForTheHoldTime(t *testing.T) {
	r := newPeerRouter(t, frrWith())
	s := newServer(t)
	must.Succeed(t, s.Announce(routesTo("10.16.0.0/16"), nil))
	must.Succeed(t, s.Configure(t.Context(), with(across(far4), across(far6))))
	r.reaches("10.16.0.0/16", near4)
	plug(t, farPort, false)
	took := r.reaches("10.16.0.0/16")
	t.Log("the router loses a node that is cut off, with a hold time of 9 s, after", took.Round(time.Millisecond))
	if took < 4*time.Second {
		t.Errorf("the router lost the node after %s", took)
	}
}

func TestFRRKeepsRoutesDuringARestart(t *testing.T) {
	r := newPeerRouter(t, frrWith())
	graceful := func(p *v1alpha1.SpeakerPeer) { p.GracefulRestart = &v1alpha1.SpeakerGracefulRestart{} }
	for _, kept := range []string{"10.16.0.1/32", "10.16.0.2/32"} { // the second process lacks the first prefix
		s := newServer(t)
		must.Succeed(t, s.Announce(routesTo("10.16.0.3/32", kept), nil))
		must.Succeed(t, s.Configure(t.Context(), with(across(far4, graceful))))
		r.reaches(kept, near4)
		s.Stop(t.Context())
		eventually.Stays(t, 2*time.Second, func() string {
			if len(r.hops("10.16.0.3/32")) != 1 {
				return "the router has lost a route during a restart"
			}
			return ""
		})
	}
	r.reaches("10.16.0.1/32")
}

func TestBIRDConnectsByIBGP(t *testing.T) {
	d := birdWith("  local as 65001;\n  password \"right\";\n", "")
	r := newPeerRouter(t, d)
	s := NewServer(slog.New(slog.DiscardHandler), v1alpha1.DefaultBGPPort)
	t.Cleanup(func() { must.Succeed(t, s.Configure(t.Context(), nil)) })
	spec := &v1alpha1.Speaker{ASN: 65001, Peers: []v1alpha1.SpeakerPeer{across(far4, func(p *v1alpha1.SpeakerPeer) {
		p.ASN, p.Connection, p.Password = 65001, v1alpha1.ConnectionPassive, &v1alpha1.SecretKey{Name: "s"}
	})}}
	must.Succeed(t, s.Announce(routesTo("10.16.0.0/16"), nil))
	must.Succeed(t, s.Configure(t.Context(), ConfigOf(spec, testNode(map[string]string{"s": "right"}))))
	r.reaches("10.16.0.0/16", near4)
}

func TestBIRDSends100000Routes(t *testing.T) {
	var routes strings.Builder
	routes.WriteString("protocol static { ipv4;\n")
	for i := range 100000 {
		fmt.Fprintf(&routes, "route 20.%d.%d.%d/32 blackhole;\n", i>>16, i>>8&255, i&255)
	}
	routes.WriteString("}\n")
	r := newPeerRouter(t, birdWith("  local as 65002;\n  passive;\n", routes.String()))
	s := newServer(t)
	must.Succeed(t, s.Announce(routesTo("10.16.0.0/16"), nil))
	config := func(limit int32) *Config {
		return with(across(far4, func(p *v1alpha1.SpeakerPeer) { p.MaxReceived = limit }))
	}
	must.Succeed(t, s.Configure(t.Context(), config(0)))
	eventually.Wait{Base: 20 * time.Second}.Empty(t, func() string {
		state, err := s.State(t.Context())
		must.Succeed(t, err)
		if p := state.Peers[0]; !strings.Contains(p.Message, fmt.Sprintf("maxReceived (%d)", v1alpha1.DefaultMaxReceived)) {
			return "the session is " + p.Session + ": " + p.Message
		}
		return ""
	})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	must.Succeed(t, s.Configure(t.Context(), config(200000)))
	eventually.Wait{Base: 30 * time.Second}.Empty(t, func() string {
		state, err := s.State(t.Context())
		must.Succeed(t, err)
		if n := state.Peers[0].Received["ipv4"]; n != 100000 {
			return fmt.Sprintf("%d routes arrived", n)
		}
		return ""
	})
	r.reaches("10.16.0.0/16", near4)
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("100,000 ignored routes take %d MB", (after.HeapAlloc-before.HeapAlloc)>>20)
}

func TestFiveThousandPrefixes(t *testing.T) {
	r := newPeerRouter(t, frrWith())
	s := newServer(t)
	must.Succeed(t, s.Configure(t.Context(), with(across(far4))))
	must.Succeed(t, s.Announce(routesTo("10.15.0.0/16"), nil))
	r.reaches("10.15.0.0/16", near4)
	var all []netip.Prefix
	for i := range 5000 {
		all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 16, byte(i >> 8), byte(i)}), 32))
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	must.Succeed(t, s.Announce(plain(all), nil))
	t.Log("5,000 prefixes reach the kernel of the router after", r.routes(5000).Round(time.Millisecond))
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("they take %d kB", (after.HeapAlloc-before.HeapAlloc)>>10)
	var changes []time.Duration
	for i := range 20 {
		must.Succeed(t, s.Announce(nil, all[i:i+1]))
		changes = append(changes, r.reaches(all[i].String()))
	}
	t.Log("one of them is withdrawn after", summary(changes))
	began := cpu(t)
	for i := range 100 {
		must.Succeed(t, s.Announce(nil, all[1000+i:1001+i]))
	}
	r.routes(4880)
	if ends := r.endsAt(s); ends != "0" { // FRR sends the routes back
		t.Errorf("the session ended %s times", ends)
	}
	t.Log("the withdrawal of one costs", ((cpu(t) - began) / 100).Round(time.Microsecond), "of CPU")
}
