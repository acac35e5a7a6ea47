// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bfd

import (
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bfd"
)

const local, remote, replaced = 1, 2, 3

func TestStatesOfASession(t *testing.T) {
	from := func(state packet.StateType, mine, yours uint32) packet.BFDHeader {
		return packet.BFDHeader{
			State: state, MyDiscriminator: mine, YourDiscriminator: yours, DetectTimeMultiplier: 3, DesiredMinTxInterval: 300000, RequiredMinRxInterval: 300000,
		}
	}
	up := []packet.BFDHeader{from(packet.StateDown, remote, 0), from(packet.StateInit, remote, local)}
	silent := packet.BFDHeader{}
	for name, test := range map[string]struct {
		packets  []packet.BFDHeader
		want     packet.StateType
		failures uint64
	}{
		"down, then init":                           {up[:1], packet.StateInit, 0},
		"a router that is in init":                  {up, packet.StateUp, 0},
		"a router that is up":                       {[]packet.BFDHeader{up[0], from(packet.StateUp, remote, local)}, packet.StateUp, 0},
		"up is no reply to down":                    {[]packet.BFDHeader{from(packet.StateUp, remote, local)}, packet.StateDown, 0},
		"a failure that the router reports":         {append(up[:2:2], from(packet.StateDown, remote, local)), packet.StateDown, 1},
		"a router that is switched off":             {append(up[:2:2], from(packet.StateAdminDown, remote, local)), packet.StateDown, 0},
		"silence is a failure":                      {append(up[:2:2], silent), packet.StateDown, 1},
		"silence before the session is up":          {append(up[:1:1], silent), packet.StateDown, 0},
		"a session that the router replaces":        {[]packet.BFDHeader{up[0], from(packet.StateDown, replaced, 0), from(packet.StateInit, replaced, local)}, packet.StateUp, 0},
		"a packet for another session":              {append(up[:2:2], from(packet.StateDown, remote, 99)), packet.StateUp, 0},
		"a packet of no session, of a router in up": {append(up[:1:1], from(packet.StateUp, remote, 0)), packet.StateInit, 0},
		"a packet without a discriminator":          {append(up[:2:2], from(packet.StateDown, 0, local)), packet.StateUp, 0},
	} {
		t.Run(name, func(t *testing.T) {
			failures := uint64(0)
			s := newSession(slog.New(slog.DiscardHandler), netip.MustParseAddr("192.0.2.2"), Config{MinTransmit: 300 * time.Millisecond, MinReceive: 300 * time.Millisecond, Multiplier: 3}, func() { failures++ })
			s.local = local
			for _, p := range test.packets {
				if p == silent {
					s.expire()
				} else {
					s.process(p)
				}
			}
			if s.state != test.want || failures != test.failures || s.status.Failures != failures {
				t.Errorf("the session is %s after %d failures, want %s after %d", s.state, failures, test.want, test.failures)
			}
		})
	}
}

func TestIntervalsFollowTheRouter(t *testing.T) {
	s := newSession(slog.New(slog.DiscardHandler), netip.MustParseAddr("192.0.2.2"), Config{MinTransmit: 100 * time.Millisecond, MinReceive: 100 * time.Millisecond, Multiplier: 3}, func() {})
	s.local = local
	within := func(least, most time.Duration) {
		t.Helper()
		for range 100 {
			if d := s.interval(); d < least || d > most {
				t.Fatalf("the interval is %s, want %s to %s", d, least, most)
			}
		}
	}
	within(750*time.Millisecond, time.Second) // RFC 5880, section 6.8.3
	header := packet.BFDHeader{State: packet.StateDown, MyDiscriminator: remote, DetectTimeMultiplier: 5, DesiredMinTxInterval: 200000, RequiredMinRxInterval: 400000}
	s.process(header)
	header.State, header.YourDiscriminator = packet.StateInit, local
	s.process(header)
	if s.detection != time.Second || !s.poll {
		t.Errorf("the detection time is %s, poll %t", s.detection, s.poll)
	}
	within(300*time.Millisecond, 400*time.Millisecond)
	header.State, header.Final = packet.StateUp, true
	s.process(header)
	if s.poll {
		t.Error("the router has acknowledged the interval")
	}
}

// A change of the Config keeps a session that is up. The old intervals apply until the router has acknowledged the new ones.
func TestAChangedConfigKeepsTheSession(t *testing.T) {
	peer := netip.MustParseAddr("192.0.2.2")
	server := NewServer(slog.New(slog.DiscardHandler), func(netip.Addr) { t.Error("the session failed") })
	s := newSession(server.log, peer, Config{MinTransmit: 100 * time.Millisecond, MinReceive: 100 * time.Millisecond, Multiplier: 3}, func() { t.Error("the session failed") })
	s.local, server.sessions[peer] = local, s
	server.sockets = []net.PacketConn{nil} // so that the server does not listen
	header := packet.BFDHeader{State: packet.StateInit, MyDiscriminator: remote, YourDiscriminator: local, DetectTimeMultiplier: 3, DesiredMinTxInterval: 1000}
	s.process(header)
	header.State, header.Final = packet.StateUp, true
	s.process(header)
	for _, c := range []Config{{MinTransmit: time.Second, MinReceive: 50 * time.Millisecond, Multiplier: 5}, {MinTransmit: 50 * time.Millisecond, MinReceive: time.Second, Multiplier: 3}} {
		if err := server.Set(t.Context(), map[netip.Addr]Config{peer: c}); err != nil {
			t.Fatal(err)
		}
		if server.sessions[peer] != s || s.state != packet.StateUp || !s.poll || s.desired() != c.MinTransmit {
			t.Fatalf("the session is %s, poll %t, and desires %s", s.state, s.poll, s.desired())
		}
		if d := s.interval(); d > 100*time.Millisecond {
			t.Errorf("the interval is %s before the router knows the new one", d)
		}
		header.Final = false
		s.process(header)
		if s.detection < 300*time.Millisecond {
			t.Errorf("the detection time is %s before the router knows the new one", s.detection)
		}
		header.Final = true
		s.process(header)
		if s.poll || s.transmit != c.MinTransmit || s.detection != 3*c.MinReceive {
			t.Errorf("poll %t, interval %s, detection time %s after the acknowledgment", s.poll, s.transmit, s.detection)
		}
	}
}

// A router must not take a session that is switched off for a failure of the path.
func TestASessionThatEndsSaysSo(t *testing.T) {
	router, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = router.Close() })
	conn, err := net.DialUDP("udp", nil, router.LocalAddr().(*net.UDPAddr))
	if err != nil {
		t.Fatal(err)
	}
	peer := netip.MustParseAddr("192.0.2.2")
	server := NewServer(slog.New(slog.DiscardHandler), func(netip.Addr) {})
	s := newSession(server.log, peer, Config{MinTransmit: time.Minute, MinReceive: time.Minute, Multiplier: 3}, func() {})
	s.conn, server.sessions[peer] = conn, s
	go s.run()
	if err := server.Set(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	// Set has sent all packets; the first ones can be of the session as it was.
	last, buffer := packet.StateDown, make([]byte, 128)
	_ = router.SetReadDeadline(time.Now().Add(10 * time.Second)) // the test fails then
	for last != packet.StateAdminDown {
		n, err := router.Read(buffer)
		if err != nil {
			t.Fatalf("the last packet had the state %s: %v", last, err)
		}
		var h packet.BFDHeader
		if err := h.UnmarshalBinary(buffer[:n]); err != nil {
			t.Fatal(err)
		}
		last = h.State
	}
}

// TestPacketsOfOtherNetworksAreDiscarded passes packets that a router has forwarded, and others.
func TestPacketsOfOtherNetworksAreDiscarded(t *testing.T) {
	peer := netip.MustParseAddr("192.0.2.2")
	s := NewServer(slog.New(slog.DiscardHandler), func(netip.Addr) {})
	s.sessions[peer] = newSession(s.log, peer, Config{}, func() {})
	from := func(a string) net.Addr {
		return net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(a), 50000))
	}
	valid := packet.BFDHeader{Version: 1}
	s.pass(from("192.0.2.2"), 254, valid, nil)
	s.pass(from("192.0.2.2"), 255, packet.BFDHeader{Version: 0}, nil)
	s.pass(from("192.0.2.2"), 255, valid, packet.ErrInvalidHeader)
	s.pass(from("192.0.2.3"), 255, valid, nil)
	for range queue + 1 {
		s.pass(from("::ffff:192.0.2.2"), 255, valid, nil)
	}
	if want := (Counters{Received: queue, Dropped: 1, Invalid: 3, Unknown: 1}); s.counters != want {
		t.Errorf("the counters are %+v, want %+v", s.counters, want)
	}
}
