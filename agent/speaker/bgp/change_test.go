// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/osrg/gobgp/v4/api"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// ends returns how often the session of the router with a node has ended.
func (r *router) ends(node string) uint32 {
	r.Helper()
	var ends uint32
	must.Succeed(r.T, r.server.ListPeer(r.Context(), &api.ListPeerRequest{Address: node}, func(p *api.Peer) { ends = p.State.Flops }))
	return ends
}

// problems returns the messages of the peers of the node.
func problems(t *testing.T, s *Server) string {
	t.Helper()
	state, err := s.State(t.Context())
	must.Succeed(t, err)
	var all []string
	for _, p := range state.Peers {
		all = append(all, p.Address.String()+": "+p.Message)
	}
	return strings.Join(all, "\n")
}

func passive(p *v1alpha1.SpeakerPeer) { p.Connection = v1alpha1.ConnectionPassive }

// TestAPassivePeerEndsNoOtherSession adds a passive peer while the process may not listen, cannot listen, or listens.
func TestAPassivePeerEndsNoOtherSession(t *testing.T) {
	for name, test := range map[string]struct {
		port     func(t *testing.T) int32
		problem  string
		occupied bool
	}{
		"without the right to listen": {port: func(*testing.T) int32 { return 0 }, problem: "this pod may not listen"},
		"while another process listens": {
			port: func(t *testing.T) int32 {
				nodePort++
				l, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", nodePort))
				must.Succeed(t, err)
				t.Cleanup(func() { _ = l.Close() })
				return nodePort
			}, problem: "address already in use", occupied: true,
		},
		"while the process listens": {port: func(*testing.T) int32 { nodePort++; return nodePort }},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRouter(t, 65002, session(node4, 65001))
			s := NewServer(slog.New(slog.DiscardHandler), test.port(t))
			t.Cleanup(func() { must.Succeed(t, s.Configure(t.Context(), nil)) })
			must.Succeed(t, s.Announce(routesTo("10.16.0.0/16"), nil))
			active, other := r.peer(router4, 65002), v1alpha1.SpeakerPeer{Address: router6, ASN: 65002}
			passive(&other)
			must.Succeed(t, s.Configure(t.Context(), with(active)))
			r.has("10.16.0.0/16 via 192.0.2.1")
			if err := s.Configure(t.Context(), with(active, other)); (err != nil) != test.occupied {
				t.Errorf("the error is %v", err)
			}
			if got := problems(t, s); !strings.Contains(got, test.problem) || strings.Contains(got, router4+": this") {
				t.Errorf("the problems are %s", got)
			}
			other.Password = &v1alpha1.SecretKey{Name: "missing"}
			_ = s.Configure(t.Context(), with(active, other))
			if n := r.ends(node4); n != 0 {
				t.Errorf("the session of the other peer ended %d times", n)
			}
			r.has("10.16.0.0/16 via 192.0.2.1")
		})
	}
}

func TestTheServerListensWhenThePortIsFree(t *testing.T) {
	s := newServer(t)
	l, err := net.Listen("tcp6", fmt.Sprintf("[::]:%d", s.port))
	must.Succeed(t, err)
	r := newRouter(t, 65002, session(node4, 65001, func(p *api.Peer) { p.Transport.PassiveMode, p.Transport.RemotePort = false, uint32(s.port) }))
	must.Succeed(t, s.Announce(routesTo("10.16.0.0/16"), nil))
	config := with(r.peer(router4, 65002, passive))
	if err := s.Configure(t.Context(), config); err == nil {
		t.Error("there is no error while another process listens")
	}
	must.Succeed(t, l.Close())
	must.Succeed(t, s.Configure(t.Context(), with(r.peer(router4, 65002, passive))))
	r.has("10.16.0.0/16 via 192.0.2.1")
}

// TestASessionContinuesUntilThePasswordIsMounted renames the Secret of a peer.
func TestASessionContinuesUntilThePasswordIsMounted(t *testing.T) {
	r := newRouter(t, 65001, session(node4, 65001)) // iBGP
	s := newServer(t)
	must.Succeed(t, s.Announce(routesTo("10.16.0.0/16"), nil))
	community := func(p *v1alpha1.SpeakerPeer) { p.Communities = []string{"65001:7"} }
	must.Succeed(t, s.Configure(t.Context(), with(r.peer(router4, 65001, community))))
	want := fmt.Sprintf("10.16.0.0/16 via 192.0.2.1 preference 100 communities [%d]", 65001<<16+7)
	r.has(want)
	renamed := r.peer(router4, 65001, community, func(p *v1alpha1.SpeakerPeer) { p.Password = &v1alpha1.SecretKey{Name: "renamed"} })
	for range 2 {
		must.Succeed(t, s.Configure(t.Context(), with(renamed)))
	}
	established(t, s, true)
	if got := problems(t, s); got != router4+": the Secret renamed does not exist" {
		t.Errorf("the problem is %q", got)
	}
	if n := r.ends(node4); n != 0 {
		t.Errorf("the session ended %d times", n)
	}
	r.has(want)
	must.Succeed(t, s.Configure(t.Context(), with()))
	r.has()
}

// TestAttributesAreSentAgainAfterAnError changes communities while another setting fails.
func TestAttributesAreSentAgainAfterAnError(t *testing.T) {
	r := newRouter(t, 65001, session(node4, 65001), session(node6, 65001))
	s := newServer(t)
	must.Succeed(t, s.Announce(routesTo("10.16.0.0/16"), nil))
	config := func(community string, more ...v1alpha1.SpeakerPeer) *Config {
		return with(append(more, r.peer(router4, 65001, func(p *v1alpha1.SpeakerPeer) { p.Communities = []string{community} }))...)
	}
	want := func(community int) string {
		return fmt.Sprintf("10.16.0.0/16 via 192.0.2.1 preference 100 communities [%d]", 65001<<16+community)
	}
	must.Succeed(t, s.Configure(t.Context(), config("65001:7", r.peer(router6, 65001))))
	r.has(want(7))

	t.Log("a peer that cannot be deleted")
	must.Succeed(t, s.running.DeletePeer(t.Context(), &api.DeletePeerRequest{Address: router6}))
	if err := s.Configure(t.Context(), config("65001:8")); err == nil {
		t.Error("the second deletion of a peer has no error")
	}
	r.has(want(8))

	t.Log("policies that GoBGP refuses")
	if err := s.Configure(t.Context(), config("invalid")); err == nil {
		t.Error("an invalid community has no error")
	}
	_ = s.Configure(t.Context(), config("65001:9")) // the peer still cannot be deleted
	r.has(want(9))
	if n := r.ends(node4); n != 0 {
		t.Errorf("the session ended %d times", n)
	}
}
