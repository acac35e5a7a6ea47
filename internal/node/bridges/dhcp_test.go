// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/server4"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go4.org/netipx"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/bridges/renewal"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// testLease is the duration of leases in tests.
const testLease = 16 * time.Second

// leases is a DHCP server behind an interface, which renews one address for one client identifier.
type leases struct {
	address  net.IP
	clientID []byte
	duration time.Duration
	renewed  atomic.Int64
	silent   atomic.Bool
	// refuses makes it send refusals without end.
	refuses atomic.Bool
}

// serve answers until the end of the test, in the network namespace of the gateway.
func (l *leases) serve(t *testing.T, in netns.NsHandle) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here := must.Value(netns.Get())
	defer here.Close()
	must.Succeed(t, netns.Set(in))
	socket, err := server4.NewIPv4UDPConn("peer", &net.UDPAddr{Port: dhcpv4.ServerPort})
	must.Succeed(t, netns.Set(here))
	must.Succeed(t, err)
	server := must.Value(server4.NewServer("", nil, l.answer, server4.WithConn(socket)))
	go func() { _ = server.Serve() }()
	t.Cleanup(func() { _ = server.Close() })
}

func (l *leases) answer(socket net.PacketConn, _ net.Addr, m *dhcpv4.DHCPv4) {
	if l.silent.Load() || m.MessageType() != dhcpv4.MessageTypeRequest || !m.ClientIPAddr.Equal(l.address) || m.ServerIdentifier() != nil {
		return
	}
	modifiers := []dhcpv4.Modifier{
		dhcpv4.WithMessageType(dhcpv4.MessageTypeAck), dhcpv4.WithYourIP(l.address), dhcpv4.WithServerIP(net.ParseIP("192.0.2.2")), dhcpv4.WithLeaseTime(uint32(l.duration / time.Second)),
	}
	if !bytes.Equal(m.GetOneOption(dhcpv4.OptionClientIdentifier), l.clientID) {
		modifiers = []dhcpv4.Modifier{dhcpv4.WithMessageType(dhcpv4.MessageTypeNak)}
	}
	if l.refuses.Load() {
		refusal := must.Value(dhcpv4.NewReplyFromRequest(m, dhcpv4.WithMessageType(dhcpv4.MessageTypeNak))).ToBytes()
		for l.refuses.Load() {
			_, _ = socket.WriteTo(refusal, &net.UDPAddr{IP: l.address, Port: dhcpv4.ClientPort})
			time.Sleep(100 * time.Millisecond)
		}
		return
	}
	reply := must.Value(dhcpv4.NewReplyFromRequest(m, modifiers...))
	if _, err := socket.WriteTo(reply.ToBytes(), &net.UDPAddr{IP: l.address, Port: dhcpv4.ClientPort}); err == nil && reply.MessageType() == dhcpv4.MessageTypeAck {
		l.renewed.Add(1)
	}
}

var leasedAddress = netip.MustParsePrefix("192.0.2.50/24")

// withLease gives eth1 an address with a limited lifetime, and returns the server that renews it for another time.
func withLease(t *testing.T, p provided, left, renewed time.Duration) *leases {
	t.Helper()
	eth1 := must.Value(netlink.LinkByName("eth1"))
	seconds := int(left / time.Second)
	must.Succeed(t, netlink.AddrAdd(eth1, &netlink.Addr{IPNet: netipx.PrefixIPNet(leasedAddress), ValidLft: seconds, PreferedLft: seconds}))
	server := &leases{address: leasedAddress.Addr().AsSlice(), clientID: append([]byte{1}, eth1.Attrs().HardwareAddr...), duration: renewed}
	server.serve(t, p.gateway)
	return server
}

// onBridge returns the rest of the lifetime of the address on the bridge.
func (l *leases) onBridge() (left time.Duration) {
	for _, a := range must.Value(netlink.AddrList(must.Value(netlink.LinkByName("br-net1")), netlink.FAMILY_V4)) {
		if a.IP.Equal(l.address) {
			left = time.Duration(a.ValidLft) * time.Second
		}
	}
	return left
}

// TestRefusalsDoNotKeepARequestOpen asks while a host refuses all the time.
func TestRefusalsDoNotKeepARequestOpen(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	server := withLease(t, p, testLease, testLease)
	server.refuses.Store(true)
	defer server.refuses.Store(false)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	lease := renewal.Renewal{Address: leasedAddress.Addr(), ClientID: server.clientID}
	if _, err := lease.Ask(ctx, must.Value(netlink.LinkByName("eth1"))); err == nil || ctx.Err() != nil {
		t.Errorf("the request ended with %v, its context with %v", err, ctx.Err())
	}
}

// TestALeaseIsLongerThanBefore moves an interface whose lease the server makes much longer than the kernel knows.
func TestALeaseIsLongerThanBefore(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	server := withLease(t, p, testLease, time.Hour)
	ended := p.running(t)
	request := wanted["net1"]
	request.NodeInterface = providerbridge.NodeInterfaceAll
	p.Request(t, ended, map[string]providerbridge.Request{"net1": request})
	p.until(t, ended, providerbridge.StateReady)
	if left := server.onBridge(); left < time.Hour/2 {
		t.Errorf("the bridge has the address for %s, want about one hour", left)
	}
	if got := server.renewed.Load(); got != 1 {
		t.Errorf("%d renewals, want the one before the move", got)
	}
}

// TestALeasedAddressIsRenewed moves an interface with an address of a DHCP server, which knows the client by its MAC address with a type. It returns when
// the server no longer answers.
func TestALeasedAddressIsRenewed(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	server := withLease(t, p, testLease, testLease)
	ended := p.running(t)
	request := wanted["net1"]
	request.NodeInterface = providerbridge.NodeInterfaceAll
	p.Request(t, ended, map[string]providerbridge.Request{"net1": request})
	p.until(t, ended, providerbridge.StateReady)
	if got := server.renewed.Load(); got != 1 {
		t.Errorf("%d renewals before the move, want one that shows that it can be renewed", got)
	}
	supervisortest.Eventually(t, "the lease is renewed on the bridge", func() error {
		if left := server.onBridge(); server.renewed.Load() < 2 || left <= testLease/2 {
			return fmt.Errorf("%s left, %d renewals", left, server.renewed.Load())
		}
		return nil
	})
	server.silent.Store(true)
	result := p.until(t, ended, providerbridge.StateFailed)
	if !strings.Contains(result.Message, "the address "+leasedAddress.Addr().String()) { // from kiln ovs, or from a guard that was first
		t.Errorf("the cause is %q", result.Message)
	}
	supervisortest.Eventually(t, "the gateway reaches the node", p.reached)
	if has := kernel.Prefixes(must.Value(kernel.Addresses(must.Value(netlink.LinkByName("eth1"))))); len(has) < 2 {
		t.Errorf("eth1 has %v", has)
	}
}
