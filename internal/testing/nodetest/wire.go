// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go4.org/netipx"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// Veth makes an interface with an MTU of 1450 whose other end, with a p at the end of its name, is in the same namespace. Both are up.
func Veth(t *testing.T, name string) netlink.Link {
	t.Helper()
	must.Succeed(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: 1450}, PeerName: name + "p"}))
	for _, end := range []string{name, name + "p"} {
		must.Succeed(t, netlink.LinkSetUp(must.Value(netlink.LinkByName(end))))
	}
	return must.Value(netlink.LinkByName(name))
}

// AddAddresses adds addresses, which are at once usable, to an interface. They end after the seconds; 0 for never.
func AddAddresses(t *testing.T, link netlink.Link, seconds int, addresses ...string) {
	t.Helper()
	for _, p := range Prefixes(addresses...) {
		made := &netlink.Addr{IPNet: netipx.PrefixIPNet(p), ValidLft: seconds, PreferedLft: seconds}
		if p.Addr().Is6() {
			made.Flags = unix.IFA_F_NODAD
		}
		must.Succeed(t, netlink.AddrAdd(link, made))
	}
}

// Prefixes parses prefixes.
func Prefixes(list ...string) []netip.Prefix {
	var parsed []netip.Prefix
	for _, s := range list {
		parsed = append(parsed, netip.MustParsePrefix(s))
	}
	return parsed
}

// Wire connects eth1, which has the addresses 192.0.2.1/24 and 2001:db8::1/64 and a route of each family, with the interface peer of another namespace, which has 192.0.2.2/24.
func Wire(t *testing.T) netns.NsHandle {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here := must.Value(netns.Get())
	there := must.Value(netns.New())
	must.Succeed(t, netns.Set(here))
	t.Cleanup(func() { _ = errors.Join(here.Close(), there.Close()) })

	must.Succeed(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth1", MTU: 1500}, PeerName: "peer"}))
	must.Succeed(t, netlink.LinkSetNsFd(must.Value(netlink.LinkByName("peer")), int(there)))
	lo, eth1 := must.Value(netlink.LinkByName("lo")), must.Value(netlink.LinkByName("eth1"))
	for _, link := range []netlink.Link{lo, eth1} {
		must.Succeed(t, netlink.LinkSetUp(link))
	}
	AddAddresses(t, eth1, 0, "192.0.2.1/24", "2001:db8::1/64")
	must.Succeed(t, netlink.RouteAdd(&netlink.Route{LinkIndex: eth1.Attrs().Index, Dst: netipx.PrefixIPNet(netip.MustParsePrefix("198.51.100.0/24")), Gw: net.ParseIP("192.0.2.2")}))
	must.Succeed(t, netlink.RouteAdd(&netlink.Route{LinkIndex: eth1.Attrs().Index, Family: netlink.FAMILY_V6, Gw: net.ParseIP("2001:db8::2"), Priority: 1024}))

	other := must.Value(netlink.NewHandleAt(there))
	peer := must.Value(other.LinkByName("peer"))
	must.Succeed(t, other.LinkSetUp(peer))
	must.Succeed(t, other.AddrAdd(peer, &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("192.0.2.2/24"))}))
	return there
}

// Within calls f in a namespace.
func Within(namespace netns.NsHandle, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := netns.Get()
	if err != nil {
		return err
	}
	defer here.Close()
	if err := netns.Set(namespace); err != nil {
		return err
	}
	return errors.Join(f(), netns.Set(here))
}

// Ping sends one echo request from a namespace and expects exactly one reply.
func Ping(ns netns.NsHandle, address string) error {
	network, local, protocol := "ip4:icmp", "0.0.0.0", 1
	var ask, answer icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if netip.MustParseAddr(address).Is6() {
		network, local, protocol, ask, answer = "ip6:ipv6-icmp", "::", 58, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	var conn *icmp.PacketConn
	err := Within(ns, func() (err error) {
		conn, err = icmp.ListenPacket(network, local)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	id := int(time.Now().UnixNano() & 0xffff)
	request, err := (&icmp.Message{Type: ask, Body: &icmp.Echo{ID: id, Seq: 1}}).Marshal(nil)
	if err != nil {
		return err
	}
	if _, err := conn.WriteTo(request, &net.IPAddr{IP: net.ParseIP(address)}); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		return err
	}
	replies, buffer := 0, make([]byte, 1500)
	for {
		n, _, err := conn.ReadFrom(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return err
		}
		message, err := icmp.ParseMessage(protocol, buffer[:n])
		if err != nil || message.Type != answer {
			continue
		}
		if echo, ok := message.Body.(*icmp.Echo); ok && echo.ID == id {
			replies++
		}
	}
	if replies != 1 {
		return fmt.Errorf("%d replies to one request", replies)
	}
	return nil
}
