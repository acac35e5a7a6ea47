// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	gobgp "github.com/osrg/gobgp/v4/pkg/server"
	"google.golang.org/protobuf/proto"

	"github.com/kiln-net/kiln/agent/speaker/bfd"
	"github.com/kiln-net/kiln/agent/speaker/routes"
)

// Server holds the sessions of a node. Configure, Announce and Stop must not be called concurrently; State may be called at any time.
type Server struct {
	log *slog.Logger
	// port on which the process listens for passive peers; 0 if it does not listen.
	port int32
	// changed gets a value after the state of a session changed.
	changed chan struct{}

	mu      sync.Mutex
	running *gobgp.BgpServer // nil while there is no Config
	stop    func()
	global  *api.Global
	policy  *api.SetPoliciesRequest
	// resend is true while established sessions may have sent routes with attributes of earlier policies.
	resend bool
	peers  map[netip.Addr]*api.Peer
	bfd    *bfd.Server
	// used are the peers of the last Configure that were to have a session.
	used   map[netip.Addr]Peer
	config *Config
	// problem is the error of the last Configure.
	problem string
	// prefixes are announced to all peers with their MED, and again after the sessions were stopped.
	prefixes map[netip.Prefix]uint32
	// restarted is true once the sessions with which the process began exist.
	restarted bool
}

// NewServer returns a Server without sessions. port is that on which it listens for passive peers: v1alpha1.DefaultBGPPort, except in tests; 0 if the
// process may not listen.
func NewServer(log *slog.Logger, port int32) *Server {
	s := &Server{log: log, port: port, changed: make(chan struct{}, 1), prefixes: map[netip.Prefix]uint32{}}
	s.bfd = bfd.NewServer(log, s.pathFailed)
	return s
}

// Changed returns a channel that gets a value after the state of a session changed.
func (s *Server) Changed() <-chan struct{} { return s.changed }

func (s *Server) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Configure makes the sessions equal to c; nil ends all sessions. Sessions whose settings do not change continue.
func (s *Server) Configure(ctx context.Context, c *Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.configure(ctx, c)
	s.config, s.problem = c, ""
	if err != nil {
		s.problem = err.Error()
	}
	s.notify() // a peer with a problem causes no event of a session
	return err
}

func (s *Server) configure(ctx context.Context, c *Config) error {
	if c == nil {
		s.end(ctx, false)
		s.used = nil
		return nil
	}
	occupied, err := s.run(ctx, c)
	if err != nil {
		return err
	}
	used := *c
	used.Peers = s.usable(c, occupied)
	if err := s.setPolicies(ctx, policies(&used)); err != nil {
		return err
	}
	err = s.setPeers(ctx, &used)
	s.restarted = s.restarted || err == nil
	return errors.Join(err, s.bfd.Set(ctx, used.bfd()), s.sendAgain(ctx), occupied)
}

// sendAgain makes established sessions send their routes again with the attributes of changed policies.
func (s *Server) sendAgain(ctx context.Context) error {
	if !s.resend {
		return nil
	}
	if err := s.running.ResetPeer(ctx, &api.ResetPeerRequest{Soft: true, Direction: api.ResetPeerRequest_DIRECTION_OUT}); err != nil {
		return fmt.Errorf("send the routes with new attributes: %w", err)
	}
	s.resend = false
	return nil
}

func (s *Server) start(ctx context.Context, global *api.Global) error {
	running := gobgp.NewBgpServer(gobgp.LoggerOption(s.log, nil))
	go running.Serve()
	if err := running.StartBgp(ctx, &api.StartBgpRequest{Global: proto.CloneOf(global)}); err != nil {
		running.Stop()
		return fmt.Errorf("start BGP: %w", err)
	}
	watching, stop := context.WithCancel(context.Background())
	err := running.WatchEvent(watching, gobgp.WatchEventMessageCallbacks{
		OnPeerUpdate: func(*apiutil.WatchEventMessage_PeerEvent, time.Time) { s.notify() },
	}, gobgp.WatchPeer())
	if err != nil {
		stop()
		running.Stop()
		return fmt.Errorf("watch sessions: %w", err)
	}
	s.running, s.stop, s.global, s.policy, s.peers = running, stop, global, nil, map[netip.Addr]*api.Peer{}
	// Before the sessions, so that their first updates are complete.
	if len(s.prefixes) > 0 {
		var all []routes.Route
		for p, med := range s.prefixes {
			all = append(all, routes.Route{Prefix: p, MED: med})
		}
		if err := s.add(all); err != nil {
			s.end(ctx, false)
			return err
		}
	}
	return nil
}

// setPolicies sets resend if sessions have used other policies.
func (s *Server) setPolicies(ctx context.Context, wanted *api.SetPoliciesRequest) error {
	if proto.Equal(wanted, s.policy) {
		return nil
	}
	s.resend = s.resend || len(s.peers) > 0
	s.policy = nil // unknown until the end
	if err := s.running.SetPolicies(ctx, wanted); err != nil {
		return fmt.Errorf("set the policies: %w", err)
	}
	for _, a := range assignments() {
		if err := s.running.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: a}); err != nil {
			return fmt.Errorf("assign the policy %s: %w", a.Policies[0].Name, err)
		}
	}
	s.policy = wanted
	return nil
}

// setPeers deletes, adds and replaces sessions, one for each peer of c.
func (s *Server) setPeers(ctx context.Context, c *Config) error {
	wanted := map[netip.Addr]*api.Peer{}
	for _, p := range c.Peers {
		wanted[p.Address] = p.session(c, !s.restarted)
	}
	var errs []error
	for address, before := range s.peers {
		if next := wanted[address]; next != nil && same(before, next) {
			continue
		}
		if err := s.running.DeletePeer(ctx, &api.DeletePeerRequest{Address: address.String()}); err != nil {
			errs = append(errs, fmt.Errorf("end the session with %s: %w", address, err))
			continue
		}
		delete(s.peers, address)
	}
	for address, peer := range wanted {
		if s.peers[address] != nil {
			continue
		}
		if err := s.running.AddPeer(ctx, &api.AddPeerRequest{Peer: proto.CloneOf(peer)}); err != nil {
			errs = append(errs, fmt.Errorf("begin the session with %s: %w", address, err))
			continue
		}
		s.peers[address] = peer
	}
	return errors.Join(errs...)
}

// same reports whether two settings of a session are equal. A restart lasts only until the first session.
func same(a, b *api.Peer) bool {
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	for _, p := range []*api.Peer{a, b} {
		if p.GracefulRestart != nil {
			p.GracefulRestart.LocalRestarting = false
		}
	}
	return proto.Equal(a, b)
}

// Announce announces routes and withdraws prefixes. Both may be empty. After an error, the caller must call Replace.
func (s *Server) Announce(announce []routes.Route, withdraw []netip.Prefix) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range withdraw {
		delete(s.prefixes, p)
	}
	for _, r := range announce {
		s.prefixes[r.Prefix] = r.MED
	}
	if s.running == nil {
		return nil
	}
	if len(withdraw) > 0 { // first: packets to a prefix that is not served are lost
		if err := s.running.DeletePath(apiutil.DeletePathRequest{Paths: paths(plain(withdraw), true)}); err != nil {
			return fmt.Errorf("withdraw %d prefixes: %w", len(withdraw), err)
		}
	}
	return s.add(announce)
}

// Replace makes the announced routes equal to all.
func (s *Server) Replace(all []routes.Route) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prefixes = make(map[netip.Prefix]uint32, len(all))
	for _, r := range all {
		s.prefixes[r.Prefix] = r.MED
	}
	if s.running == nil {
		return nil
	}
	if err := s.running.DeletePath(apiutil.DeletePathRequest{DeleteAll: true}); err != nil {
		return fmt.Errorf("withdraw all prefixes: %w", err)
	}
	return s.add(all)
}

func (s *Server) add(all []routes.Route) error {
	if len(all) == 0 {
		return nil
	}
	if _, err := s.running.AddPath(apiutil.AddPathRequest{Paths: paths(all, false)}); err != nil {
		return fmt.Errorf("announce %d prefixes: %w", len(all), err)
	}
	return nil
}

// plain returns routes without MED.
func plain(prefixes []netip.Prefix) []routes.Route {
	all := make([]routes.Route, 0, len(prefixes))
	for _, p := range prefixes {
		all = append(all, routes.Route{Prefix: p})
	}
	return all
}

// paths returns routes in GoBGP's form. Their next hop is the node's address of each session.
func paths(routes []routes.Route, withdrawal bool) []*apiutil.Path {
	all := make([]*apiutil.Path, 0, len(routes))
	for _, r := range routes {
		nlri, err := packet.NewIPAddrPrefix(r.Prefix)
		if err != nil {
			continue // impossible for a valid prefix
		}
		path := &apiutil.Path{Family: packet.RF_IPv4_UC, Nlri: nlri, Withdrawal: withdrawal, Age: time.Now().Unix(), Attrs: []packet.PathAttributeInterface{
			packet.NewPathAttributeOrigin(packet.BGP_ORIGIN_ATTR_TYPE_IGP),
		}}
		if r.Addr().Is4() {
			next, _ := packet.NewPathAttributeNextHop(netip.IPv4Unspecified())
			path.Attrs = append(path.Attrs, next)
		} else {
			path.Family = packet.RF_IPv6_UC
			next, _ := packet.NewPathAttributeMpReachNLRI(packet.RF_IPv6_UC, []packet.PathNLRI{{NLRI: nlri}}, netip.IPv6Unspecified())
			path.Attrs = append(path.Attrs, next)
		}
		if r.MED != 0 {
			path.Attrs = append(path.Attrs, packet.NewPathAttributeMultiExitDisc(r.MED))
		}
		all = append(all, path)
	}
	return all
}

// Stop ends all sessions. Peers with graceful restart keep the routes, because a restarted process announces them again.
func (s *Server) Stop(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(ctx, true)
}

func (s *Server) end(ctx context.Context, graceful bool) {
	if s.running == nil {
		return
	}
	s.stop()
	if err := s.bfd.Set(ctx, nil); err != nil {
		s.log.Error("cannot end BFD", "error", err)
	}
	if !graceful {
		s.running.Stop()
	} else if err := s.running.StopBgp(ctx, &api.StopBgpRequest{AllowGracefulRestart: true}); err != nil {
		s.log.Error("cannot end the sessions", "error", err)
	}
	s.running, s.stop, s.global, s.policy, s.peers, s.resend = nil, nil, nil, nil, nil, false
}
