// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bfd"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

const (
	// maxTTL is the TTL of all packets (RFC 5881, section 5).
	maxTTL = 255
	// slow is the shortest interval of packets while a session is not up (RFC 5880, section 6.8.3).
	slow = time.Second
	// Source ports (RFC 5881, section 4).
	firstPort, lastPort = 49152, 65535
	// queue is the number of received packets that a session has not processed yet. Others are dropped.
	queue = 8
)

// session is one session. Its goroutine is run.
type session struct {
	log    *slog.Logger
	peer   netip.Addr
	source netip.Addr
	local  uint32 // discriminator
	failed func()

	received chan packet.BFDHeader
	// changed has an entry after a change of the Config. done is closed when the session has ended.
	changed, stop, done chan struct{}
	conn                *net.UDPConn // nil while the peer cannot be reached

	mu     sync.Mutex // of the fields below
	config Config
	// transmit and receive are the intervals in use: config's, when the peer has acknowledged them (RFC 5880, section 6.8.3).
	transmit, receive time.Duration
	state             packet.StateType
	status            Status
	// remote is the peer's discriminator, remoteMinRx the shortest interval at which it receives packets.
	remote      uint32
	remoteMinRx time.Duration
	// detection is the time after which a silent peer has failed; 0 until the first packet.
	detection time.Duration
	// poll is true until the peer has acknowledged a changed interval.
	poll bool
}

func newSession(log *slog.Logger, peer netip.Addr, c Config, failed func()) *session {
	s := &session{
		log: log, peer: peer, source: c.Source, config: c, transmit: c.MinTransmit, receive: c.MinReceive, local: 1 + rand.Uint32N(1<<32-1), failed: failed, //nolint:gosec // no secret: packets with a TTL of 255 come from the link
		received: make(chan packet.BFDHeader, queue), changed: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}), state: packet.StateDown, remoteMinRx: time.Microsecond,
	}
	s.status.State, s.status.Remote = packet.StateDown, packet.StateDown
	return s
}

// update applies a Config with the same Source. The session stays up: the peer acknowledges the new intervals.
func (s *session) update(c Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c == s.config {
		return
	}
	s.config, s.poll = c, s.state == packet.StateUp
	s.transmit, s.receive = min(s.transmit, c.MinTransmit), max(s.receive, c.MinReceive)
	s.settle()
	select {
	case s.changed <- struct{}{}:
	default: // the session sends a packet soon
	}
}

// settle applies the intervals of the Config if the peer knows them.
func (s *session) settle() {
	if !s.poll {
		s.transmit, s.receive = s.config.MinTransmit, s.config.MinReceive
	}
}

// end reports to the peer that the session is switched off, which is no failure of the path (RFC 5880, section 6.8.16). Packets can be lost: it sends as many as
// the peer waits for.
func (s *session) end() {
	s.mu.Lock()
	s.set(packet.StateAdminDown)
	packets := s.config.Multiplier
	s.mu.Unlock()
	for range packets {
		s.send(false)
	}
	if s.conn != nil {
		_ = s.conn.Close()
	}
}

func (s *session) run() {
	defer close(s.done)
	send, detect := time.NewTimer(0), time.NewTimer(slow)
	defer send.Stop()
	defer detect.Stop()
	detect.Stop()
	for {
		select {
		case <-s.stop:
			s.end()
			return
		case <-s.changed:
			send.Reset(0)
		case h := <-s.received:
			before := s.current()
			if !s.process(h) {
				continue
			}
			if h.Poll {
				s.send(true)
			}
			if s.current() != before {
				send.Reset(0)
			}
			detect.Reset(s.detection)
		case <-detect.C:
			s.expire()
		case <-send.C:
			s.send(false)
			send.Reset(s.interval())
		}
	}
}

func (s *session) current() packet.StateType {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// process applies a received packet (RFC 5880, section 6.8.6). It returns false if the packet is discarded.
func (s *session) process(h packet.BFDHeader) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.DetectTimeMultiplier == 0 || h.MyDiscriminator == 0 || h.YourDiscriminator != 0 && h.YourDiscriminator != s.local ||
		h.YourDiscriminator == 0 && h.State != packet.StateDown && h.State != packet.StateAdminDown {
		return false
	}
	s.status.Received++
	s.remote, s.remoteMinRx, s.status.Remote = h.MyDiscriminator, time.Duration(h.RequiredMinRxInterval)*time.Microsecond, h.State
	s.poll = s.poll && !h.Final
	s.settle()
	s.detection = time.Duration(h.DetectTimeMultiplier) * max(s.receive, time.Duration(h.DesiredMinTxInterval)*time.Microsecond)
	switch {
	case h.State == packet.StateAdminDown: // no failure (RFC 5882, section 3.2)
		s.set(packet.StateDown)
	case s.state == packet.StateDown && h.State == packet.StateDown:
		s.set(packet.StateInit)
	case s.state == packet.StateDown && h.State == packet.StateInit, s.state == packet.StateInit && h.State != packet.StateDown:
		s.set(packet.StateUp)
	case s.state == packet.StateUp && h.State == packet.StateDown:
		s.fail()
	}
	return true
}

// expire ends a session whose peer is silent. Only one that was up has failed.
func (s *session) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == packet.StateUp {
		s.fail()
	}
	s.set(packet.StateDown)
	s.remote, s.remoteMinRx = 0, time.Microsecond
}

func (s *session) fail() {
	s.status.Failures++
	s.set(packet.StateDown)
	s.failed()
}

func (s *session) set(state packet.StateType) {
	s.poll = state == packet.StateUp && (s.poll || s.state != state)
	s.state, s.status.State = state, state
	s.settle()
}

// desired is the interval of packets that the session advertises.
func (s *session) desired() time.Duration {
	if s.state == packet.StateUp {
		return s.config.MinTransmit
	}
	return max(s.config.MinTransmit, slow)
}

// interval returns the time until the next packet, with jitter (RFC 5880, section 6.8.7).
func (s *session) interval() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	most, transmit := 1.0, s.desired()
	if s.state == packet.StateUp {
		transmit = s.transmit
	}
	if s.config.Multiplier == 1 {
		most = 0.9
	}
	return time.Duration(float64(max(transmit, s.remoteMinRx)) * (0.75 + (most-0.75)*rand.Float64())) //nolint:gosec // jitter
}

// send sends a packet. final acknowledges a packet of the peer.
func (s *session) send(final bool) {
	s.mu.Lock()
	h := packet.BFDHeader{
		Version: 1, State: s.state, Poll: s.poll && !final, Final: final, DetectTimeMultiplier: s.config.Multiplier,
		MyDiscriminator: s.local, YourDiscriminator: s.remote,
		DesiredMinTxInterval: microseconds(s.desired()), RequiredMinRxInterval: microseconds(s.config.MinReceive),
	}
	silent := s.remoteMinRx == 0 && !final
	s.mu.Unlock()
	if silent {
		return
	}
	if err := s.write(h); err != nil {
		s.log.Debug("cannot send BFD packets", "peer", s.peer, "error", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Sent++
}

func (s *session) write(h packet.BFDHeader) error {
	raw, err := h.MarshalBinary()
	if err != nil {
		return fmt.Errorf("encode a packet: %w", err)
	}
	if s.conn == nil {
		if s.conn, err = dial(s.source, s.peer); err != nil {
			return err
		}
	}
	if _, err = s.conn.Write(raw); err != nil && !errors.Is(err, unix.ECONNREFUSED) { // of an earlier packet: the peer does not listen yet
		_ = s.conn.Close()
		s.conn = nil
	}
	return err
}

// dial opens the socket from which a session sends.
func dial(source, peer netip.Addr) (*net.UDPConn, error) {
	for range 10 { // a port may be in use
		from := netip.AddrPortFrom(source, uint16(firstPort+rand.IntN(lastPort-firstPort+1))) //nolint:gosec // a port, and not a secret
		if !source.IsValid() {
			from = netip.AddrPortFrom(netip.IPv6Unspecified(), from.Port())
			if peer.Is4() {
				from = netip.AddrPortFrom(netip.IPv4Unspecified(), from.Port())
			}
		}
		conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(netip.AddrPortFrom(peer, Port)))
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("open a socket: %w", err)
		}
		if peer.Is4() {
			err = ipv4.NewConn(conn).SetTTL(maxTTL)
		} else {
			err = ipv6.NewConn(conn).SetHopLimit(maxTTL)
		}
		if err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("set the TTL: %w", err)
		}
		return conn, nil
	}
	return nil, errors.New("open a socket: no free port")
}

func microseconds(d time.Duration) uint32 { return uint32(d.Microseconds()) } //nolint:gosec // the API server limits it to 60 s
