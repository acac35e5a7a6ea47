// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bfd detects failures of paths to directly connected routers (RFC 5880, RFC 5881): asynchronous mode, single hop, without authentication.
package bfd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bfd"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// Port is the UDP port on which routers receive packets.
const Port = 3784

// Config of a session.
type Config struct {
	// Source is the address of the node's side; the zero Addr if the kernel chooses it.
	Source                  netip.Addr
	MinTransmit, MinReceive time.Duration
	Multiplier              uint8
}

// Status of a session.
type Status struct {
	// State of the session, and Remote as the router reports it.
	State, Remote            packet.StateType
	Failures, Sent, Received uint64
}

// Counters of all packets that the node has received.
type Counters struct{ Received, Dropped, Errors, Invalid, Unknown uint64 }

// Server holds the sessions of a node.
type Server struct {
	log *slog.Logger
	// failed is called when a session that was up has failed.
	failed func(peer netip.Addr)

	mu       sync.Mutex
	sessions map[netip.Addr]*session
	sockets  []net.PacketConn
	counters Counters
}

// NewServer returns a server without sessions. failed must not call the server.
func NewServer(log *slog.Logger, failed func(peer netip.Addr)) *Server {
	return &Server{log: log, failed: failed, sessions: map[netip.Addr]*session{}}
}

// Set makes the sessions equal to wanted. Sessions with the same Source continue. The server listens while there are sessions.
func (s *Server) Set(ctx context.Context, wanted map[netip.Addr]Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for peer, old := range s.sessions {
		if c, found := wanted[peer]; found && c.Source == old.source {
			old.update(c)
		} else {
			close(old.stop)
			<-old.done // the router knows before the process ends
			delete(s.sessions, peer)
		}
	}
	var err error
	if len(wanted) > 0 && len(s.sockets) == 0 {
		err = s.listen(ctx)
	}
	for peer, c := range wanted {
		if s.sessions[peer] == nil {
			s.sessions[peer] = newSession(s.log, peer, c, func() { go s.failed(peer) })
			go s.sessions[peer].run()
		}
	}
	if len(wanted) == 0 {
		s.close()
	}
	return err
}

// listen opens a socket of each family that the kernel has.
func (s *Server) listen(ctx context.Context) error {
	var errs []error
	for _, family := range []string{"udp4", "udp6"} {
		socket, err := new(net.ListenConfig).ListenPacket(ctx, family, fmt.Sprintf(":%d", Port))
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("listen for BFD: %w", err))
			continue
		}
		s.sockets = append(s.sockets, socket)
		open := readIPv4
		if family == "udp6" {
			open = readIPv6
		}
		read, err := open(socket)
		if err != nil {
			errs = append(errs, fmt.Errorf("request the TTL of BFD packets: %w", err))
			continue
		}
		go s.receive(read)
	}
	if len(errs) > 0 {
		s.close()
	}
	return errors.Join(errs...)
}

func (s *Server) close() {
	for _, socket := range s.sockets {
		_ = socket.Close()
	}
	s.sockets = nil
}

// reader reads a packet. The TTL is 0 if the kernel does not report it.
type reader func(buffer []byte) (length, ttl int, from net.Addr, err error)

func readIPv4(socket net.PacketConn) (reader, error) {
	c := ipv4.NewPacketConn(socket)
	return func(b []byte) (int, int, net.Addr, error) {
		n, m, from, err := c.ReadFrom(b)
		if m == nil {
			return n, 0, from, err
		}
		return n, m.TTL, from, err
	}, c.SetControlMessage(ipv4.FlagTTL, true)
}

func readIPv6(socket net.PacketConn) (reader, error) {
	c := ipv6.NewPacketConn(socket)
	return func(b []byte) (int, int, net.Addr, error) {
		n, m, from, err := c.ReadFrom(b)
		if m == nil {
			return n, 0, from, err
		}
		return n, m.HopLimit, from, err
	}, c.SetControlMessage(ipv6.FlagHopLimit, true)
}

// receive passes packets on to sessions until their socket is closed.
func (s *Server) receive(read reader) {
	buffer := make([]byte, 128)
	for {
		n, ttl, from, err := read(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		var h packet.BFDHeader
		if err == nil {
			err = h.UnmarshalBinary(buffer[:n])
			s.pass(from, ttl, h, err)
			continue
		}
		s.mu.Lock()
		s.counters.Errors++
		s.mu.Unlock()
		s.log.Debug("cannot read BFD packets", "error", err)
	}
}

// pass passes a packet on to the session of its source.
func (s *Server) pass(from net.Addr, ttl int, h packet.BFDHeader, problem error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	udp, ok := from.(*net.UDPAddr)
	if !ok || problem != nil || ttl != maxTTL || h.Version != 1 { // a smaller TTL: a host of another network has sent it
		s.counters.Invalid++
		return
	}
	to := s.sessions[udp.AddrPort().Addr().Unmap().WithZone("")]
	if to == nil {
		s.counters.Unknown++
		return
	}
	select {
	case to.received <- h:
		s.counters.Received++
	default:
		s.counters.Dropped++
	}
}

// Status returns the state of each session.
func (s *Server) Status() (map[netip.Addr]Status, Counters) {
	s.mu.Lock()
	sessions, counters := maps.Clone(s.sessions), s.counters
	s.mu.Unlock()
	all := make(map[netip.Addr]Status, len(sessions))
	for peer, x := range sessions {
		x.mu.Lock()
		all[peer] = x.status
		x.mu.Unlock()
	}
	return all, counters
}
