// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pinger

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// pingGroups is the kernel parameter that the pod sets.
const pingGroups = "/proc/sys/net/ipv4/ping_group_range"

func TestMain(m *testing.M) {
	var code int
	var err error
	if nodetest.Inside() {
		if err = errors.Join(nodetest.Mount(), os.WriteFile(pingGroups, []byte("0 2147483647"), 0)); err == nil {
			err = connectPeer()
		}
		if err == nil {
			code = m.Run()
		}
	} else {
		code, err = nodetest.Enter()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// other is the network of the peer, and peerLink its interface.
var (
	other    *netlink.Handle
	peerLink netlink.Link
)

// connectPeer makes eth0 with addresses of both families, and an interface in another namespace.
func connectPeer() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := netns.Get()
	if err != nil {
		return err
	}
	there, err := netns.New()
	if err != nil {
		return err
	}
	if err := netns.Set(here); err != nil {
		return err
	}
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer", PeerNamespace: netlink.NsFd(there)}); err != nil {
		return err
	}
	if other, err = netlink.NewHandleAt(there); err != nil {
		return err
	}
	if peerLink, err = other.LinkByName("peer"); err != nil {
		return err
	}
	for _, name := range []string{"lo", "eth0"} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		if name == "lo" {
			continue
		}
		for _, a := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
			if err := netlink.AddrAdd(link, address(a)); err != nil {
				return err
			}
		}
	}
	return peerUp()
}

// peerUp sets the link of the peer up, with its addresses: the kernel removes IPv6 addresses when the link is set down.
func peerUp() error {
	if err := other.LinkSetUp(peerLink); err != nil {
		return err
	}
	for _, a := range []string{"192.0.2.2/24", "192.0.2.3/24", "2001:db8::2/64"} {
		if err := other.AddrReplace(peerLink, address(a)); err != nil {
			return err
		}
	}
	return nil
}

// carrier waits until both ends of the link are operational. The kernel notices a change of the carrier up to a second later, and drops packets meanwhile.
func carrier(t *testing.T) {
	t.Helper()
	here := &netlink.Handle{}
	eventually.Until(t, func() string {
		for name, handle := range map[string]*netlink.Handle{"eth0": here, "peer": other} {
			if link, err := handle.LinkByName(name); err != nil || link.Attrs().OperState != netlink.OperUp {
				return name + " has no carrier"
			}
		}
		return ""
	})
}

func address(cidr string) *netlink.Addr {
	a, err := netlink.ParseAddr(cidr)
	if err != nil {
		panic(err)
	}
	const noDAD = 0x02 // IFA_F_NODAD
	a.Flags = noDAD
	return a
}

func addrs(list ...string) (all []netip.Addr) {
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

// nameServer answers queries for one name. It does not answer while it is stopped.
type nameServer struct {
	name    string
	address string
	stopped atomic.Bool
}

func serveNames(t *testing.T, name string) *nameServer {
	t.Helper()
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	s := &nameServer{name: name + ".", address: socket.LocalAddr().String()}
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			var query dnsmessage.Message
			if s.stopped.Load() || query.Unpack(buffer[:n]) != nil {
				continue
			}
			if answer, err := s.answer(query).Pack(); err == nil {
				_, _ = socket.WriteTo(answer, from)
			}
		}
	}()
	return s
}

func (s *nameServer) answer(query dnsmessage.Message) *dnsmessage.Message {
	answer := &dnsmessage.Message{
		Header:    dnsmessage.Header{ID: query.ID, Response: true, RecursionAvailable: true, RCode: dnsmessage.RCodeNameError},
		Questions: query.Questions,
	}
	q := query.Questions[0]
	if q.Name.String() != s.name {
		return answer
	}
	answer.RCode = dnsmessage.RCodeSuccess
	if q.Type == dnsmessage.TypeA {
		answer.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 1}, Body: &dnsmessage.AResource{A: [4]byte{10, 96, 0, 1}},
		}}
	}
	return answer
}

func (s *nameServer) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", s.address)
	}}
}
