// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/node/neighbour"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// uplink is the node's interface, and tag the VLAN with a host.
const (
	uplink = "eth2"
	tag    = 7
)

var hostMAC = net.HardwareAddr{2, 0, 0, 0xaa, 0, 1}

// physical is a physical network with one host. Not every kernel that runs the tests has VLAN interfaces, so the host is part of the test.
type physical struct {
	*testing.T
	socket int

	mu sync.Mutex
	// addresses of the host, by tag.
	addresses map[int][]netip.Addr
	// strict: the host answers only requests whose sender has an address.
	strict bool
	probes []received
}

// received is a probe that the host received. from.Address is not valid for a sender without an address.
type received struct {
	from    neighbour.Host
	address netip.Addr
}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

// newPhysical connects eth2 to another namespace, in which the host answers.
func newPhysical(t *testing.T) *physical {
	t.Helper()
	must.Succeed(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: uplink}, PeerName: "phys"}))
	link, err := netlink.LinkByName(uplink)
	must.Succeed(t, err)
	peer, err := netlink.LinkByName("phys")
	must.Succeed(t, err)
	namespace, err := testutils.NewNS()
	must.Succeed(t, err)
	t.Cleanup(func() { _ = testutils.UnmountNS(namespace) })
	must.Succeed(t, netlink.LinkSetNsFd(peer, int(namespace.Fd())))
	p := &physical{T: t}
	must.Succeed(t, namespace.Do(func(ns.NetNS) (err error) {
		if p.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(
			netlink.LinkSetUp(peer),
			unix.SetsockoptInt(p.socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
			unix.SetsockoptInt(p.socket, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
			unix.Bind(p.socket, &unix.SockaddrLinklayer{Protocol: binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}), Ifindex: peer.Attrs().Index}))
	}))
	must.Succeed(t, netlink.LinkSetUp(link))
	go p.serve() // until the test's process ends
	return p
}

func (p *physical) serve() {
	frame, control := make([]byte, 256), make([]byte, 128)
	for {
		length, controlLength, _, from, err := unix.Recvmsg(p.socket, frame, control, 0)
		if link, ok := from.(*unix.SockaddrLinklayer); err != nil || !ok || link.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		vlan := tagOf(control[:controlLength])
		probe, ok := request(frame[:length])
		if !ok {
			continue
		}
		p.mu.Lock()
		p.probes = append(p.probes, probe)
		has := false
		for _, a := range p.addresses[vlan] {
			has = has || a == probe.address
		}
		if has && (!p.strict || probe.from.Address.IsValid()) {
			_, _ = unix.Write(p.socket, reply(probe, vlan))
		}
		p.mu.Unlock()
	}
}

// request parses an ARP request or a neighbour solicitation.
func request(frame []byte) (received, bool) {
	if len(frame) < 42 {
		return received{}, false
	}
	r := received{from: neighbour.Host{MAC: bytes.Clone(frame[6:12])}}
	switch protocol := binary.BigEndian.Uint16(frame[12:]); {
	case protocol == unix.ETH_P_ARP && frame[21] == 1:
		r.from.Address, r.address = netip.AddrFrom4([4]byte(frame[28:32])), netip.AddrFrom4([4]byte(frame[38:42]))
	case protocol == unix.ETH_P_IPV6 && len(frame) >= 78 && frame[20] == unix.IPPROTO_ICMPV6 && frame[54] == byte(ipv6.ICMPTypeNeighborSolicitation):
		r.from.Address, r.address = netip.AddrFrom16([16]byte(frame[22:38])), netip.AddrFrom16([16]byte(frame[62:78]))
	default:
		return received{}, false
	}
	if r.from.Address.IsUnspecified() {
		r.from.Address = netip.Addr{}
	}
	return r, true
}

// reply returns the host's answer to the sender of a request. The kernel has removed the tag of the request.
func reply(r received, vlan int) []byte {
	to, body := r.from.MAC, []byte(nil)
	protocol := uint16(unix.ETH_P_ARP)
	if r.address.Is4() {
		request, err := neighbour.Request(neighbour.Host{Address: r.address, MAC: hostMAC}, 0, r.address)
		if err != nil {
			panic(err)
		}
		body = request[14:]
		body[7] = 2 // a reply
	} else {
		protocol = unix.ETH_P_IPV6
		source, all := r.address.AsSlice(), netip.MustParseAddr("ff02::1").AsSlice()
		message := icmp.Message{Type: ipv6.ICMPTypeNeighborAdvertisement, Body: &icmp.RawBody{Data: append(make([]byte, 4), source...)}}
		advertisement, err := message.Marshal(icmp.IPv6PseudoHeader(source, all))
		if err != nil {
			panic(err)
		}
		to = net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
		body = append([]byte{0x60, 0, 0, 0, 0, byte(len(advertisement)), unix.IPPROTO_ICMPV6, 255}, source...)
		body = append(append(body, all...), advertisement...)
	}
	frame := append(bytes.Clone(to), hostMAC...)
	if vlan != 0 {
		frame = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(frame, unix.ETH_P_8021Q), uint16(vlan))
	}
	return append(binary.BigEndian.AppendUint16(frame, protocol), body...)
}
