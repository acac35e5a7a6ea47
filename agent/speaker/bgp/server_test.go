// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/agent/speaker/routes"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/gate"
	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestARouterGetsRoutesOfBothFamilies(t *testing.T) {
	r := newRouter(t, 65002, session(node4, 65001), session(node6, 65001))
	s := newServer(t)
	must.Succeed(t, s.Announce(routesTo("10.16.0.0/16", "fd00:10:16::/112"), nil))
	must.Succeed(t, s.Configure(t.Context(), with(r.peer(router4, 65002), r.peer(router6, 65002))))
	r.has("10.16.0.0/16 via 192.0.2.1", "fd00:10:16::/112 via 2001:db8::1")

	must.Succeed(t, s.Announce(routesTo("10.16.0.7/32"), prefixes("10.16.0.0/16")))
	r.has("10.16.0.7/32 via 192.0.2.1", "fd00:10:16::/112 via 2001:db8::1")
	must.Succeed(t, s.Replace(routesTo("10.16.0.8/32")))
	r.has("10.16.0.8/32 via 192.0.2.1")

	state, err := s.State(t.Context())
	must.Succeed(t, err)
	if got := fmt.Sprint(state.Peers[0].Announced, state.Peers[0].Session); got != "map[ipv4:1]established" {
		t.Errorf("the state of the session is %s", got)
	}
	routes, err := s.Routes(netip.MustParseAddr(router4), false, 10)
	must.Succeed(t, err)
	if got := fmt.Sprint(routes); got != "[{10.16.0.8/32 192.0.2.1}]" {
		t.Errorf("the routes of the session are %s", got)
	}

	must.Succeed(t, s.Configure(t.Context(), nil))
	r.has()
}

// TestARouterPrefersTheLowerMED announces the same prefixes from two nodes, in sessions of other and of the same AS.
func TestARouterPrefersTheLowerMED(t *testing.T) {
	for name, asn := range map[string]uint32{"eBGP": 65002, "iBGP": 65001} {
		t.Run(name, func(t *testing.T) {
			r := newRouter(t, asn, session(node4, 65001), session(node6, 65001))
			both := func(p *v1alpha1.SpeakerPeer) {
				p.Families = []v1alpha1.RouteFamily{v1alpha1.RoutesIPv4, v1alpha1.RoutesIPv6}
			}
			first, second := newServer(t), newServer(t)
			of := func(med uint32) []routes.Route {
				all := routesTo("198.51.100.9/32", "2001:db8:9::9/128")
				all[0].MED, all[1].MED = med, med
				return all
			}
			must.Succeed(t, first.Announce(of(300), nil)) // before the session
			must.Succeed(t, first.Configure(t.Context(), with(r.peer(router4, int64(asn), both))))
			r.prefers(300, 1)
			must.Succeed(t, second.Configure(t.Context(), with(r.peer(router6, int64(asn), both))))
			must.Succeed(t, second.Announce(of(200), nil))
			r.prefers(200, 2)
			must.Succeed(t, first.Announce(of(100), nil)) // a new MED of the same prefix
			r.prefers(100, 2)
			must.Succeed(t, first.Replace(of(250)))
			r.prefers(200, 2)
			must.Succeed(t, second.Announce(nil, prefixes("198.51.100.9/32", "2001:db8:9::9/128")))
			r.prefers(250, 1)
		})
	}
}

func TestASessionCarriesBothFamilies(t *testing.T) {
	both := []v1alpha1.RouteFamily{v1alpha1.RoutesIPv4, v1alpha1.RoutesIPv6}
	for name, test := range map[string]struct {
		router, node string
		change       func(*v1alpha1.SpeakerPeer)
		want         []string
	}{
		"over IPv4": {
			router4, node4, func(p *v1alpha1.SpeakerPeer) { p.Families = both },
			[]string{"10.16.0.0/16 via 192.0.2.1", "fd00:10:16::/112 via 2001:db8::1"},
		},
		"over IPv6": {
			router6, node6, func(p *v1alpha1.SpeakerPeer) { p.Families = both },
			[]string{"10.16.0.0/16 via 192.0.2.1", "fd00:10:16::/112 via 2001:db8::1"},
		},
		"with extended next hops": {
			router6, node6, func(p *v1alpha1.SpeakerPeer) { p.ExtendedNextHop = v1alpha1.ExtendedNextHopEnabled },
			[]string{"10.16.0.0/16 via 2001:db8::1", "fd00:10:16::/112 via 2001:db8::1"},
		},
		"one family only": {
			router6, node6, func(p *v1alpha1.SpeakerPeer) { p.Families = both[:1] },
			[]string{"10.16.0.0/16 via 192.0.2.1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRouter(t, 65002, session(test.node, 65001))
			s := newServer(t)
			must.Succeed(t, s.Announce(routesTo("10.16.0.0/16", "fd00:10:16::/112"), nil))
			must.Succeed(t, s.Configure(t.Context(), with(r.peer(test.router, 65002, test.change))))
			r.has(test.want...)
		})
	}
}

func TestAttributesOfAPeerChangeWithoutANewSession(t *testing.T) {
	r := newRouter(t, 65001, session(node4, 65001)) // iBGP
	s := newServer(t)
	must.Succeed(t, s.Announce(routesTo("10.16.0.0/16"), nil))
	must.Succeed(t, s.Configure(t.Context(), with(r.peer(router4, 65001, func(p *v1alpha1.SpeakerPeer) { p.Communities = []string{"65001:7"} }))))
	r.has(fmt.Sprintf("10.16.0.0/16 via 192.0.2.1 preference 100 communities [%d]", 65001<<16+7))
	must.Succeed(t, s.Configure(t.Context(), with(r.peer(router4, 65001, func(p *v1alpha1.SpeakerPeer) {
		p.Communities, p.LocalPreference = []string{"no-export"}, new(int64(300))
	}))))
	r.has(fmt.Sprintf("10.16.0.0/16 via 192.0.2.1 preference 300 communities [%d]", 0xffffff01))
	state, err := s.State(t.Context())
	must.Succeed(t, err)
	if flaps := state.Peers[0].Live.State.Flops; flaps != 0 {
		t.Errorf("the session ended %d times", flaps)
	}
}

func TestARouterConnectsWithAPassword(t *testing.T) {
	if reason := noSignatures(); reason != "" { // a kernel without TCP MD5; make bgp has tests with passwords, too
		t.Skip(reason)
	}
	withPassword := func(p *v1alpha1.SpeakerPeer) {
		p.Connection, p.Password = v1alpha1.ConnectionPassive, &v1alpha1.SecretKey{Name: "peers"}
	}
	for _, right := range []bool{false, true} {
		t.Run(fmt.Sprintf("the right one %v", right), func(t *testing.T) {
			s := newServer(t)
			r := newRouter(t, 65002, session(node4, 65001, func(p *api.Peer) {
				p.Transport.PassiveMode, p.Transport.RemotePort = false, uint32(s.port)
				if p.Conf.AuthPassword = "wrong"; right {
					p.Conf.AuthPassword = "secret"
				}
			}))
			spec := &v1alpha1.Speaker{ASN: 65001, Peers: []v1alpha1.SpeakerPeer{r.peer(router4, 65002, withPassword)}}
			must.Succeed(t, s.Announce(routesTo("10.16.0.0/16"), nil))
			must.Succeed(t, s.Configure(t.Context(), ConfigOf(spec, testNode(map[string]string{"peers": "secret"}))))
			if right {
				r.has("10.16.0.0/16 via 192.0.2.1")
				return
			}
			eventually.Stays(t, 3*time.Second, func() string { return strings.Trim(r.routes(), "[]") })
		})
	}
}

func TestRoutesOfARouterAreIgnored(t *testing.T) {
	first := newRouter(t, 65002, session(node4, 65001))
	second := newRouter(t, 65003, session(node6, 65001))
	s := newServer(t)
	must.Succeed(t, s.Announce(routesTo("10.16.0.0/16"), nil))
	config := func(limit int32) *Config {
		return with(first.peer(router4, 65002, func(p *v1alpha1.SpeakerPeer) { p.MaxReceived = limit }),
			second.peer(router6, 65003, func(p *v1alpha1.SpeakerPeer) { p.Families = []v1alpha1.RouteFamily{v1alpha1.RoutesIPv4} }))
	}
	must.Succeed(t, s.Configure(t.Context(), config(10)))
	established(t, s, true)
	first.send(5)
	eventually.Wait{}.Empty(t, func() string {
		state, err := s.State(t.Context())
		must.Succeed(t, err)
		if n := state.Peers[0].Received["ipv4"]; n != 5 {
			return fmt.Sprintf("%d routes arrived", n)
		}
		return ""
	})
	second.has("10.16.0.0/16 via 192.0.2.1")

	first.send(20)
	eventually.Wait{}.Empty(t, func() string {
		state, err := s.State(t.Context())
		must.Succeed(t, err)
		if p := state.Peers[0]; !strings.Contains(p.Message, "more routes than maxReceived (10)") {
			return "the session is " + p.Session + ": " + p.Message
		}
		return ""
	})
	second.has("10.16.0.0/16 via 192.0.2.1")

	must.Succeed(t, s.Configure(t.Context(), config(100)))
	established(t, s, true)
}

func TestARouterKeepsRoutesDuringARestart(t *testing.T) {
	graceful := func(p *v1alpha1.SpeakerPeer) {
		p.GracefulRestart = &v1alpha1.SpeakerGracefulRestart{RestartTime: &metav1.Duration{Duration: time.Minute}}
	}
	r := newRouter(t, 65002, session(node4, 65001, func(p *api.Peer) {
		p.GracefulRestart = &api.GracefulRestart{Enabled: true, RestartTime: 60}
		for _, f := range p.AfiSafis {
			f.MpGracefulRestart = &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}}
		}
	}))
	first := newServer(t)
	must.Succeed(t, first.Announce(routesTo("10.16.0.1/32", "10.16.0.2/32"), nil))
	must.Succeed(t, first.Configure(t.Context(), with(r.peer(router4, 65002, graceful))))
	r.has("10.16.0.1/32 via 192.0.2.1", "10.16.0.2/32 via 192.0.2.1")
	first.Stop(t.Context())
	r.has("10.16.0.1/32 via 192.0.2.1 stale", "10.16.0.2/32 via 192.0.2.1 stale")

	second := newServer(t)
	must.Succeed(t, second.Announce(routesTo("10.16.0.2/32"), nil))
	must.Succeed(t, second.Configure(t.Context(), with(r.peer(router4, 65002, graceful))))
	r.has("10.16.0.2/32 via 192.0.2.1")

	must.Succeed(t, second.Configure(t.Context(), nil)) // the speaker is removed, which is no restart
	r.has()
}

// TestBFDDoesNotPreventASession: the tests with FRR and BIRD have a router with BFD. Here both sides are on one host, where only one of them can listen.
func TestBFDDoesNotPreventASession(t *testing.T) {
	r := newRouter(t, 65002, session(node4, 65001))
	s := newServer(t)
	must.Succeed(t, s.Configure(t.Context(), with(r.peer(router4, 65002, func(p *v1alpha1.SpeakerPeer) { p.BFD = &v1alpha1.BFD{} }))))
	established(t, s, true)
	state, err := s.State(t.Context())
	must.Succeed(t, err)
	if state.Peers[0].BFD == "" {
		t.Error("the session has no state of BFD")
	}
	must.Succeed(t, s.Configure(t.Context(), with(r.peer(router4, 65002))))
	established(t, s, true)
	if n := r.ends(node4); n != 0 {
		t.Errorf("the session ended %d times when BFD was switched off", n)
	}
}

// TestWithdrawalIsFast measures the time from a change to the router's table.
func TestWithdrawalIsFast(t *testing.T) {
	gate.Skip(t, gate.Long)
	r := newRouter(t, 65002, session(node4, 65001))
	s := newServer(t)
	must.Succeed(t, s.Configure(t.Context(), with(r.peer(router4, 65002))))
	established(t, s, true)
	var longest time.Duration
	for range 20 {
		must.Succeed(t, s.Announce(routesTo("10.16.0.1/32"), nil))
		r.has("10.16.0.1/32 via 192.0.2.1")
		began := time.Now()
		must.Succeed(t, s.Announce(nil, prefixes("10.16.0.1/32")))
		r.has()
		longest = max(longest, time.Since(began))
	}
	t.Logf("the longest of 20 withdrawals took %s", longest)
	if longest > 2*time.Second {
		t.Errorf("a withdrawal took %s", longest)
	}
}
