// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	packet "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/gate"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/seed"
)

// hostileRouter is a router that sends what a test wants.
type hostileRouter struct {
	address     string
	port        int32
	connections atomic.Int32
}

// newHostileRouter starts a router on an address of its own.
func newHostileRouter(t *testing.T, number int, behave func(c net.Conn)) *hostileRouter {
	t.Helper()
	h := &hostileRouter{address: fmt.Sprintf("192.0.2.%d", 100+number)}
	lo, err := netlink.LinkByName("lo")
	must.Succeed(t, err)
	address, err := netlink.ParseAddr(h.address + "/32")
	must.Succeed(t, err)
	must.Succeed(t, netlink.AddrReplace(lo, address))
	l, err := net.Listen("tcp4", h.address+":0")
	must.Succeed(t, err)
	t.Cleanup(func() { _ = l.Close() })
	h.port = int32(l.Addr().(*net.TCPAddr).Port)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			h.connections.Add(1)
			go func() {
				defer c.Close()
				behave(c)
			}()
		}
	}()
	return h
}

func (h *hostileRouter) peer() v1alpha1.SpeakerPeer {
	return (&router{port: h.port}).peer(h.address, 65002)
}

// message returns a BGP message with a body.
func message(kind byte, body []byte) []byte {
	raw := make([]byte, packet.BGP_HEADER_LENGTH, packet.BGP_HEADER_LENGTH+len(body))
	for i := range 16 {
		raw[i] = 0xff
	}
	raw[16], raw[17], raw[18] = byte((len(raw)+len(body))>>8), byte(len(raw)+len(body)), kind
	return append(raw, body...)
}

// openBody is the body of an OPEN of AS 65002 with options.
func openBody(options ...byte) []byte {
	return append([]byte{4, 0xfd, 0xea, 0, 9, 192, 0, 2, 99, byte(len(options))}, options...)
}

// establish makes a session, in which the node may send routes of both families.
func establish(c net.Conn) {
	capabilities := []byte{2, 12, 1, 4, 0, 1, 0, 1, 1, 4, 0, 2, 0, 1}
	_, _ = c.Write(append(message(packet.BGP_MSG_OPEN, openBody(capabilities...)), message(packet.BGP_MSG_KEEPALIVE, nil)...))
}

// broken returns UPDATEs with random errors.
func broken(random *rand.Rand) []byte {
	valid := []byte{0, 0, 0, 20, 0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xea, 0x40, 3, 4, 192, 0, 2, 99, 24, 198, 51, 100}
	for range 1 + random.IntN(3) {
		valid[random.IntN(len(valid))] = byte(random.Uint32())
	}
	return message(packet.BGP_MSG_UPDATE, valid[:random.IntN(len(valid)+1)])
}

// TestHostileRoutersHarmNoOtherSession has sessions with routers that send garbage, or read nothing, and one with a good router.
func TestHostileRoutersHarmNoOtherSession(t *testing.T) {
	gate.Skip(t, gate.Long)
	drawn := seed.New(t)
	var connections atomic.Uint64
	random := seed.Rand(drawn, 0)
	noise := make([]byte, 1<<16)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	wait := func(c net.Conn) { _, _ = c.Read(make([]byte, 1)); time.Sleep(time.Second) }
	var hostile []*hostileRouter
	for i, behave := range []func(c net.Conn){
		func(c net.Conn) { _, _ = c.Write(noise) },
		func(c net.Conn) { _, _ = c.Write(message(packet.BGP_MSG_OPEN, openBody(noise[:200]...))); wait(c) },
		func(c net.Conn) {
			_, _ = c.Write([]byte(string(message(packet.BGP_MSG_OPEN, nil)[:16]) + "\xff\xff\x01"))
			wait(c)
		},
		func(c net.Conn) {
			establish(c)
			_, _ = c.Write(message(packet.BGP_MSG_NOTIFICATION, noise[:4000]))
			wait(c)
		},
		func(c net.Conn) {
			establish(c)
			edits := seed.Rand(drawn, connections.Add(1))
			for range 2000 {
				if _, err := c.Write(broken(edits)); err != nil {
					return
				}
			}
			wait(c)
		},
		func(c net.Conn) { // reads nothing, and its socket takes little
			_ = c.(*net.TCPConn).SetReadBuffer(1)
			establish(c)
			for range 20 {
				time.Sleep(time.Second)
				_, _ = c.Write(message(packet.BGP_MSG_KEEPALIVE, nil))
			}
		},
	} {
		hostile = append(hostile, newHostileRouter(t, i, behave))
	}
	r := newRouter(t, 65002, session(node4, 65001))
	s := newServer(t)
	must.Succeed(t, s.Announce(routesTo("10.16.0.0/16"), nil))
	must.Succeed(t, s.Configure(t.Context(), with(r.peer(router4, 65002))))
	r.has("10.16.0.0/16 via 192.0.2.1")
	before := runtime.NumGoroutine()
	peers := []v1alpha1.SpeakerPeer{r.peer(router4, 65002)}
	for _, h := range hostile {
		peers = append(peers, h.peer())
	}
	must.Succeed(t, s.Configure(t.Context(), with(peers...)))
	var many []netip.Prefix
	for i := range 20000 {
		many = append(many, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 17, byte(i >> 8), byte(i)}), 32))
	}
	eventually.Wait{Base: 15 * time.Second}.Empty(t, func() string {
		for i, h := range hostile {
			if n := h.connections.Load(); n < 1 || n < 2 && i < len(hostile)-1 {
				return fmt.Sprintf("router %d had %d connections", i, n)
			}
		}
		return ""
	})
	must.Succeed(t, s.Announce(plain(many), nil))
	must.Succeed(t, s.Announce(nil, many))
	must.Succeed(t, s.Announce(routesTo("10.16.0.7/32"), nil))
	r.has("10.16.0.0/16 via 192.0.2.1", "10.16.0.7/32 via 192.0.2.1")
	if n := r.ends(node4); n != 0 {
		t.Errorf("the session of the good router ended %d times", n)
	}
	must.Succeed(t, s.Configure(t.Context(), with(r.peer(router4, 65002))))
	eventually.Wait{Base: 5 * time.Second}.Empty(t, func() string {
		if n := runtime.NumGoroutine(); n > before+2*len(hostile) { // those of the hostile routers themselves
			return fmt.Sprintf("%d goroutines, %d before", n, before)
		}
		return ""
	})
}
