// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// Announce sends a gratuitous ARP (RFC 5227, section 3) or an unsolicited neighbour advertisement (RFC 4861, section 7.2.6) for each address. A
// neighbour that knows an address from an earlier pod with another hardware address then uses the new one at once. Call it when the port passes
// packets. It does not make the kernel announce them: that would delete what the pod knows of its own neighbours.
func (i Interface) Announce() error {
	if err := i.inside(i.announce); err != nil {
		return fmt.Errorf("announce %w", err)
	}
	return nil
}

func (i Interface) announce(_ netlinksafe.Handle, link netlink.Link) error {
	var failed []error
	for _, p := range i.Addresses {
		send := i.advertise
		if p.Addr().Is4() {
			send = i.gratuitousARP
		}
		if err := send(link.Attrs().Index, p.Addr()); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", p.Addr(), err))
		}
	}
	return errors.Join(failed...)
}

// gratuitousARP broadcasts an ARP request for the own address (RFC 826).
func (i Interface) gratuitousARP(index int, addr netip.Addr) error {
	const ethernet, macLength, ipLength, request = 1, 6, 4, 1
	packet := binary.BigEndian.AppendUint16(nil, ethernet)
	packet = binary.BigEndian.AppendUint16(packet, unix.ETH_P_IP)
	packet = binary.BigEndian.AppendUint16(append(packet, macLength, ipLength), request)
	packet = append(append(packet, i.MAC...), addr.AsSlice()...)
	packet = append(append(packet, make([]byte, macLength)...), addr.AsSlice()...)

	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a packet socket: %w", err)
	}
	defer unix.Close(socket)
	to := &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ARP), Ifindex: index, Halen: macLength, Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	if err := unix.Sendto(socket, packet, 0, to); err != nil {
		return fmt.Errorf("send ARP: %w", err)
	}
	return nil
}

// advertise sends a neighbour advertisement with the override flag to all nodes of the link.
func (i Interface) advertise(index int, addr netip.Addr) error {
	const override, targetLinkLayerAddress, units = 0x20, 2, 1 // units of 8 bytes
	body := append([]byte{override, 0, 0, 0}, addr.AsSlice()...)
	body = append(append(body, targetLinkLayerAddress, units), i.MAC...)
	allNodes := net.IPv6linklocalallnodes
	message := icmp.Message{Type: ipv6.ICMPTypeNeighborAdvertisement, Body: &icmp.RawBody{Data: body}}
	packet, err := message.Marshal(icmp.IPv6PseudoHeader(addr.AsSlice(), allNodes))
	if err != nil {
		return fmt.Errorf("build a neighbour advertisement: %w", err)
	}
	conn, err := icmp.ListenPacket("ip6:ipv6-icmp", addr.String())
	if err != nil {
		return fmt.Errorf("open an ICMPv6 socket: %w", err)
	}
	defer conn.Close()
	const hops = 255 // receivers drop advertisements with fewer: they passed a router
	from := conn.IPv6PacketConn()
	if err := errors.Join(from.SetMulticastHopLimit(hops), from.SetMulticastInterface(&net.Interface{Index: index})); err != nil {
		return fmt.Errorf("prepare an ICMPv6 socket: %w", err)
	}
	if _, err := conn.WriteTo(packet, &net.IPAddr{IP: allNodes}); err != nil { // no zone: package net caches names of interfaces across namespaces
		return fmt.Errorf("send a neighbour advertisement: %w", err)
	}
	return nil
}

// networkOrder returns a number of 16 bits as the kernel reads it in network byte order.
func networkOrder(n uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], n)
	return binary.NativeEndian.Uint16(b[:])
}
