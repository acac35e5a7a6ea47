// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"net/netip"

	"github.com/osrg/gobgp/v4/api"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bfd"

	"github.com/kiln-net/kiln/agent/speaker/bfd"
)

// bfd returns the BFD sessions.
func (c *Config) bfd() map[netip.Addr]bfd.Config {
	all := map[netip.Addr]bfd.Config{}
	for _, p := range c.Peers {
		if p.BFD != nil {
			transmit, receive, multiplier := p.BFD.Intervals()
			all[p.Address] = bfd.Config{
				Source: p.Source, MinTransmit: transmit, MinReceive: receive,
				Multiplier: uint8(multiplier), //nolint:gosec // limited by the API
			}
		}
	}
	return all
}

// pathFailed ends an established session. GoBGP would keep the request otherwise, and end the next session.
func (s *Server) pathFailed(peer netip.Addr) {
	s.notify()
	s.mu.Lock()
	running := s.running
	s.mu.Unlock()
	if running == nil {
		return
	}
	ctx, established := context.Background(), false
	err := running.ListPeer(ctx, &api.ListPeerRequest{Address: peer.String()}, func(p *api.Peer) {
		established = p.State.SessionState == api.PeerState_SESSION_STATE_ESTABLISHED
	})
	if err == nil && established {
		err = running.ResetPeer(ctx, &api.ResetPeerRequest{Address: peer.String(), Communication: "BFD is down"})
	}
	if err != nil {
		s.log.Error("cannot end a session whose path has failed", "peer", peer, "error", err)
	}
}

// bfdState returns the state of a BFD session in GoBGP's form, from which metrics are made.
func bfdState(s bfd.Status) *api.BfdPeerState {
	return &api.BfdPeerState{
		SessionState: bfdStates[s.State], RemoteSessionState: bfdStates[s.Remote], FailureTransitions: s.Failures,
		BfdAsync: &api.BfdAsyncCounters{ReceivedPackets: s.Received, TransmittedPackets: s.Sent},
	}
}

var bfdStates = map[packet.StateType]api.BfdSessionState{
	packet.StateAdminDown: api.BfdSessionState_BFD_SESSION_STATE_ADMIN_DOWN, packet.StateDown: api.BfdSessionState_BFD_SESSION_STATE_DOWN,
	packet.StateInit: api.BfdSessionState_BFD_SESSION_STATE_INIT, packet.StateUp: api.BfdSessionState_BFD_SESSION_STATE_UP,
}
