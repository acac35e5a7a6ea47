// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netns"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// spacing is the time between two packets of a flow.
const spacing = 10 * time.Millisecond

// TestConnectionsSurviveAMove moves the only interface of a node, and back, under pings and TCP connections from the gateway. It logs the packets that
// were lost.
func TestConnectionsSurviveAMove(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	// A datapath in userspace needs complete checksums.
	for namespace, link := range map[netns.NsHandle]string{p.gateway: "peer", must.Value(netns.Get()): "eth1"} {
		must.Succeed(t, nodetest.Within(namespace, func() error {
			tool, err := ethtool.NewEthtool()
			if err != nil {
				return err
			}
			defer tool.Close()
			return tool.Change(link, map[string]bool{"tx-checksum-ip-generic": false})
		}))
	}
	ended := p.running(t)
	addresses := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	var flows []*pinging
	var connections []func() error
	for _, a := range addresses {
		flows = append(flows, startPings(t, p.gateway, a))
		connections = append(connections, connection(t, p.gateway, a))
	}
	alive := func(after string) {
		t.Helper()
		for i, a := range addresses {
			supervisortest.Eventually(t, "pings are answered "+after, flows[i].answered())
			if err := connections[i](); err != nil {
				t.Errorf("the connection to %s %s: %v", a, after, err)
			}
			lost, longest := flows[i].lost()
			t.Logf("%s: %d packets lost, the longest gap %s, %s", a, lost, time.Duration(longest)*spacing, after)
		}
	}
	alive("before")
	p.Request(t, ended, wanted)
	p.until(t, ended, providerbridge.StateReady)
	alive("after the move")
	p.Request(t, ended, nil)
	supervisortest.Eventually(t, "eth1 is as before", p.restored)
	alive("after the return")
}

// pinging is a flow of echo requests.
type pinging struct {
	mu      sync.Mutex
	sent    []bool // answered, by number
	counted int
}

// startPings sends echo requests from a namespace until the test ends.
func startPings(t *testing.T, from netns.NsHandle, to netip.Addr) *pinging {
	t.Helper()
	network, local, protocol := "ip4:icmp", "0.0.0.0", 1
	var request, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if to.Is6() {
		network, local, protocol, request, reply = "ip6:ipv6-icmp", "::", 58, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	var conn *icmp.PacketConn
	must.Succeed(t, nodetest.Within(from, func() (err error) {
		conn, err = icmp.ListenPacket(network, local)
		return err
	}))
	f := &pinging{}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	t.Cleanup(func() { cancel(); _ = conn.Close(); group.Wait() })
	group.Go(func() {
		for tick := time.NewTicker(spacing); ctx.Err() == nil; <-tick.C {
			f.mu.Lock()
			f.sent = append(f.sent, false)
			message := icmp.Message{Type: request, Body: &icmp.Echo{ID: 7, Seq: len(f.sent) - 1}}
			f.mu.Unlock()
			if packet, err := message.Marshal(nil); err == nil {
				_, _ = conn.WriteTo(packet, &net.IPAddr{IP: to.AsSlice()}) // a failure is a lost packet
			}
		}
	})
	group.Go(func() {
		for buffer := make([]byte, 1500); ; {
			n, _, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			message, err := icmp.ParseMessage(protocol, buffer[:n])
			if err != nil || message.Type != reply {
				continue
			}
			if echo, ok := message.Body.(*icmp.Echo); ok && echo.ID == 7 {
				f.mu.Lock()
				f.sent[echo.Seq] = true
				f.mu.Unlock()
			}
		}
	})
	return f
}

// answered returns a function that fails until a request that is sent after this call is answered.
func (f *pinging) answered() func() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	from := len(f.sent)
	return func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, answered := range f.sent[from:] {
			if answered {
				return nil
			}
		}
		return fmt.Errorf("none of %d is answered", len(f.sent)-from)
	}
}

// lost returns the number of lost packets since the last call, and the longest series of them.
func (f *pinging) lost() (lost, longest int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	end := len(f.sent)
	for end > f.counted && !f.sent[end-1] { // these may still be answered
		end--
	}
	series := 0
	for _, answered := range f.sent[f.counted:end] {
		if series++; answered {
			series = 0
			continue
		}
		lost++
		longest = max(longest, series)
	}
	f.counted = end
	return lost, longest
}

// connection opens a TCP connection from a namespace to an echo server in this one. The returned function returns nil if the connection still works.
func connection(t *testing.T, from netns.NsHandle, to netip.Addr) func() error {
	t.Helper()
	listener, err := net.Listen("tcp", netip.AddrPortFrom(to, 7007).String())
	must.Succeed(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		if server, err := listener.Accept(); err == nil {
			_, _ = io.Copy(server, server)
			_ = server.Close()
		}
	}()
	var client net.Conn
	must.Succeed(t, nodetest.Within(from, func() (err error) {
		client, err = net.DialTimeout("tcp", listener.Addr().String(), 10*time.Second)
		return err
	}))
	t.Cleanup(func() { _ = client.Close() })
	return func() error {
		if err := client.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			return err
		}
		if _, err := client.Write([]byte("x")); err != nil {
			return err
		}
		_, err := io.ReadFull(client, make([]byte, 1))
		return err
	}
}
