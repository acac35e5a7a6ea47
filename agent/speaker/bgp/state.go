// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/bgpstate"
)

// State is the state of all sessions of a node.
type State struct {
	Peers []PeerState
	// BFD are the counters of the node's BFD.
	BFD *api.BfdState
}

// PeerState is the state of one session.
type PeerState struct {
	bgpstate.Peer
	// Live is the state in GoBGP's form; nil for a peer without a session. It has no password.
	Live *api.Peer
}

// State returns the state of all sessions in the order of addresses.
func (s *Server) State(ctx context.Context) (State, error) {
	s.mu.Lock()
	running, config, problem := s.running, s.config, s.problem
	s.mu.Unlock()
	var state State
	if config == nil {
		return state, nil
	}
	live := map[string]*api.Peer{}
	if running == nil {
		for _, p := range config.Peers {
			p.Problem = cmp.Or(p.Problem, problem)
			state.Peers = append(state.Peers, peerState(p, nil))
		}
		return state, nil
	}
	if err := running.ListPeer(ctx, &api.ListPeerRequest{EnableAdvertised: true}, func(p *api.Peer) {
		p.Conf.AuthPassword, p.State.AuthPassword = "", ""
		live[p.State.NeighborAddress] = p
	}); err != nil {
		return state, fmt.Errorf("list the sessions: %w", err)
	}
	paths, counters := s.bfd.Status()
	for _, p := range config.Peers {
		session := live[p.Address.String()]
		if session != nil {
			session.State.BfdState = bfdState(paths[p.Address])
		}
		state.Peers = append(state.Peers, peerState(p, session))
	}
	slices.SortFunc(state.Peers, func(a, b PeerState) int { return a.Address.Compare(b.Address) })
	state.BFD = &api.BfdState{
		ReceivedPacket: counters.Received, ReceivedDrop: counters.Dropped, ReceivedError: counters.Errors, InvalidPacket: counters.Invalid, UnknownPeer: counters.Unknown,
	}
	return state, nil
}

func peerState(p Peer, live *api.Peer) PeerState {
	state := PeerState{Live: live}
	state.Address, state.ASN, state.Session, state.Message = p.Address, uint32(p.ASN), "idle", p.Problem //nolint:gosec // limited by the API
	if live == nil {
		return state
	}
	state.Session = sessionName(live.State.SessionState)
	state.Established = live.State.SessionState == api.PeerState_SESSION_STATE_ESTABLISHED
	if b := live.State.BfdState; p.BFD != nil {
		state.BFD = bfdName(b.GetSessionState())
	}
	if !state.Established {
		state.Message = cmp.Or(state.Message, live.State.DisconnectMessage)
		if live.State.AdminState == api.PeerState_ADMIN_STATE_PFX_CT {
			state.Message = fmt.Sprintf("the router sent more routes than maxReceived (%d)", cmp.Or(p.MaxReceived, v1alpha1.DefaultMaxReceived))
		}
		return state
	}
	state.Announced, state.Received = map[string]uint64{}, map[string]uint64{}
	for _, f := range live.AfiSafis {
		name := familyName(f.GetConfig().GetFamily())
		state.Announced[name], state.Received[name] = f.GetState().GetAdvertised(), f.GetState().GetReceived()
	}
	return state
}

func familyName(f *api.Family) string {
	if f.GetAfi() == api.Family_AFI_IP6 {
		return "ipv6"
	}
	return "ipv4"
}

// Routes returns at most limit routes that the node announces to a peer, or receives from it.
func (s *Server) Routes(peer netip.Addr, received bool, limit int) ([]bgpstate.Route, error) {
	s.mu.Lock()
	running := s.running
	s.mu.Unlock()
	if running == nil {
		return nil, nil
	}
	table := api.TableType_TABLE_TYPE_ADJ_OUT
	if received {
		table = api.TableType_TABLE_TYPE_ADJ_IN
	}
	var routes []bgpstate.Route
	for _, family := range []packet.Family{packet.RF_IPv4_UC, packet.RF_IPv6_UC} {
		err := running.ListPath(apiutil.ListPathRequest{TableType: table, Name: peer.String(), Family: family}, func(prefix packet.NLRI, paths []*apiutil.Path) {
			if len(paths) > 0 && len(routes) < limit {
				routes = append(routes, bgpstate.Route{Prefix: prefix.String(), NextHop: nextHop(paths[0])})
			}
		})
		if err != nil {
			return nil, fmt.Errorf("list routes of %s: %w", peer, err)
		}
	}
	slices.SortFunc(routes, func(a, b bgpstate.Route) int { return cmp.Compare(a.Prefix, b.Prefix) })
	return routes, nil
}

func nextHop(p *apiutil.Path) string {
	for _, a := range p.Attrs {
		switch a := a.(type) {
		case *packet.PathAttributeNextHop:
			return a.Value.String()
		case *packet.PathAttributeMpReachNLRI:
			return a.Nexthop.String()
		}
	}
	return ""
}

func sessionName(s api.PeerState_SessionState) string {
	switch s {
	case api.PeerState_SESSION_STATE_CONNECT:
		return "connect"
	case api.PeerState_SESSION_STATE_ACTIVE:
		return "active"
	case api.PeerState_SESSION_STATE_OPENSENT:
		return "opensent"
	case api.PeerState_SESSION_STATE_OPENCONFIRM:
		return "openconfirm"
	case api.PeerState_SESSION_STATE_ESTABLISHED:
		return "established"
	}
	return "idle"
}

func bfdName(s api.BfdSessionState) string {
	switch s {
	case api.BfdSessionState_BFD_SESSION_STATE_UP:
		return "up"
	case api.BfdSessionState_BFD_SESSION_STATE_INIT:
		return "init"
	case api.BfdSessionState_BFD_SESSION_STATE_ADMIN_DOWN:
		return "admin-down"
	}
	return "down"
}
