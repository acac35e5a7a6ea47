// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/osrg/gobgp/v4/api"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// run starts GoBGP, and again if a setting that all sessions share has changed. The peers have no influence on these settings, because their change
// ends all sessions. occupied is why the process cannot listen, if a peer needs it: the other sessions do not depend on the port. A later
// call listens when the port is free.
func (s *Server) run(ctx context.Context, c *Config) (occupied, err error) {
	global := &api.Global{Asn: c.ASN, RouterId: c.RouterID.String(), ListenPort: -1}
	passive := slices.ContainsFunc(c.Peers, Peer.passive)
	switch {
	case s.port == 0:
	case s.global.GetListenPort() > 0:
		global.ListenPort, global.ListenAddresses = s.global.ListenPort, s.global.ListenAddresses
	case s.running == nil || passive:
		addresses, problem := listenable(ctx, s.port)
		if problem == nil {
			global.ListenPort, global.ListenAddresses = s.port, addresses
		} else if passive {
			occupied = problem
		}
	}
	if s.running != nil && !proto.Equal(global, s.global) {
		s.end(ctx, false)
	}
	if s.running == nil {
		err = s.start(ctx, global)
	}
	return occupied, err
}

// listenable returns the wildcard addresses of the kernel's families; an error if another process listens on the port.
func listenable(ctx context.Context, port int32) ([]string, error) {
	var addresses []string
	for _, family := range []struct{ network, wildcard string }{{"tcp4", "0.0.0.0"}, {"tcp6", "::"}} {
		listener, err := new(net.ListenConfig).Listen(ctx, family.network, net.JoinHostPort(family.wildcard, strconv.Itoa(int(port))))
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("the node cannot listen for routers: %w", err)
		}
		_ = listener.Close()
		addresses = append(addresses, family.wildcard)
	}
	return addresses, nil
}

// usable returns the peers that get a session, and sets the problems of the others. A peer that waits keeps its earlier settings.
func (s *Server) usable(c *Config, occupied error) []Peer {
	used := map[netip.Addr]Peer{}
	var peers []Peer
	for i := range c.Peers {
		p := &c.Peers[i]
		if p.Problem == "" && p.passive() && s.port == 0 {
			p.Problem, p.Waits = "this pod may not listen for routers: it has to be replaced by one of the current DaemonSet", true
		}
		if p.Problem == "" && p.passive() && occupied != nil {
			p.Problem = occupied.Error()
		}
		if p.Problem == "" && p.Password != "" {
			p.Problem = noSignatures()
		}
		next, found := *p, p.Problem == ""
		if p.Waits {
			next, found = s.used[p.Address]
		}
		if found {
			used[p.Address] = next
			peers = append(peers, next)
		}
	}
	s.used = used
	return peers
}
