// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// Target is a host that shows whether the node is reached. With a port, it is reached by TCP; otherwise it is a neighbour on the
// interface, which answers ARP or neighbour discovery: hosts answer these whatever they filter.
type Target struct {
	Address netip.Addr `json:"address"`
	Port    uint16     `json:"port,omitempty"`
	Gateway bool       `json:"gateway,omitempty"`
	// Interface is the VLAN interface that it is a neighbour on; empty for the interface itself, or its bridge after the move.
	Interface string `json:"interface,omitempty"`
}

// String names the target for users.
func (t Target) String() string {
	switch {
	case t.Port != 0:
		return "the API server at " + netip.AddrPortFrom(t.Address, t.Port).String()
	case t.Gateway:
		return "the gateway " + t.Address.String()
	}
	return "the node " + t.Address.String()
}

// Names lists targets for users.
func Names(list []Target) string {
	names := make([]string, 0, len(list))
	for _, t := range list {
		names = append(names, t.String())
	}
	return strings.Join(names, ", ")
}

// maxNeighbourTargets bounds the neighbours that are targets if no gateway and no node is known.
const maxNeighbourTargets = 3

// Candidates returns the hosts that should answer on an interface with this state: gateways of its routes, nodes of its networks, and the API
// server, which is reached by any interface. Known neighbours stand in for missing gateways and nodes.
func Candidates(s State, nodes []netip.Addr, apiServer netip.AddrPort) []Target {
	var list []Target
	add := func(t Target) {
		if !slices.ContainsFunc(list, func(o Target) bool { return o.Address == t.Address && o.Port == t.Port }) {
			list = append(list, t)
		}
	}
	for _, r := range s.Routes {
		for _, g := range r.gateways() {
			add(Target{Address: g.WithZone(""), Gateway: true})
		}
	}
	for _, n := range nodes {
		if s.onLink(n) {
			add(Target{Address: n})
		}
	}
	for _, n := range s.Neighbours {
		if len(list) < maxNeighbourTargets && s.onLink(n.Address) && !n.Permanent {
			add(Target{Address: n.Address})
		}
	}
	if apiServer.IsValid() {
		add(Target{Address: apiServer.Addr(), Port: apiServer.Port()})
	}
	return list
}

// OnTop returns the hosts that should answer on the VLAN interfaces of a state.
func OnTop(s State, nodes []netip.Addr) ([]Target, error) {
	var list []Target
	for _, name := range s.OnTop {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return nil, fmt.Errorf("look for interface %s: %w", name, err)
		}
		state, err := Read(link)
		if err != nil {
			return nil, err
		}
		for _, t := range Candidates(state, nodes, netip.AddrPort{}) {
			t.Interface = name
			list = append(list, t)
		}
	}
	return list, nil
}

// onLink reports whether an address is another host's in a network of the interface.
func (s State) onLink(address netip.Addr) bool {
	on := false
	for _, a := range s.Addresses {
		if a.Prefix.Addr() == address {
			return false
		}
		on = on || a.Prefix.Contains(address)
	}
	return on
}

// probeInterval is the pause between two requests to a target.
const probeInterval = 200 * time.Millisecond

// Answering returns the targets that answer on an interface until ctx ends. It returns earlier if all do.
func Answering(ctx context.Context, link netlink.Link, targets []Target) []Target {
	answers := make([]bool, len(targets))
	var all sync.WaitGroup
	for i, t := range targets {
		all.Go(func() { answers[i] = t.answers(ctx, link) })
	}
	all.Wait()
	var list []Target
	for i, t := range targets {
		if answers[i] {
			list = append(list, t)
		}
	}
	return list
}

func (t Target) answers(ctx context.Context, link netlink.Link) bool {
	if t.Interface != "" {
		own, err := netlink.LinkByName(t.Interface)
		if err != nil {
			return false
		}
		link = own
	}
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		ask := t.neighbour
		if t.Port != 0 {
			ask = t.connect
		}
		if ask(ctx, link) == nil {
			return true
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	return false
}

// connect opens a connection. A refusal also shows that the host is reached.
func (t Target) connect(ctx context.Context, _ netlink.Link) error {
	ctx, cancel := context.WithTimeout(ctx, 5*probeInterval)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", netip.AddrPortFrom(t.Address, t.Port).String())
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		return err
	}
	return conn.Close()
}

// neighbour sends one request, and waits one interval for its answer.
func (t Target) neighbour(_ context.Context, link netlink.Link) error {
	source, err := t.source(link)
	if err != nil {
		return err
	}
	protocol, packet, to := uint16(unix.ETH_P_ARP), t.arp(link, source), bytes.Repeat([]byte{0xff}, 6)
	answered := t.answersARP
	if t.Address.Is6() {
		if packet, to, err = t.solicitation(link, source); err != nil {
			return err
		}
		protocol, answered = unix.ETH_P_IPV6, t.advertised
	}
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a packet socket: %w", err)
	}
	defer unix.Close(socket)
	if t.Address.Is6() { // otherwise all IPv6 packets of the interface fill the buffer
		if err := onlyAdvertisements(socket); err != nil {
			return err
		}
	}
	address := &unix.SockaddrLinklayer{Protocol: networkOrder(protocol), Ifindex: link.Attrs().Index}
	wait := unix.NsecToTimeval(int64(probeInterval))
	if err := errors.Join(unix.Bind(socket, address), unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait)); err != nil {
		return fmt.Errorf("bind to %s: %w", link.Attrs().Name, err)
	}
	address.Halen = uint8(copy(address.Addr[:], to)) //nolint:gosec // 6
	if err := unix.Sendto(socket, packet, 0, address); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	buffer := make([]byte, 2048)
	for end := time.Now().Add(probeInterval); time.Now().Before(end); {
		n, _, err := unix.Recvfrom(socket, buffer, 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("receive: %w", err)
		}
		if n > 0 && answered(buffer[:n]) {
			return nil
		}
	}
	return errors.New("no answer")
}

// source returns an address of the interface, of a network with the target if there is one.
func (t Target) source(link netlink.Link) (netip.Addr, error) {
	list, err := Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
	}
	var source netip.Addr
	for _, a := range list {
		prefix := prefixOf(a.IPNet)
		if prefix.Addr().Is4() != t.Address.Is4() {
			continue
		}
		if !source.IsValid() || prefix.Contains(t.Address) {
			source = prefix.Addr()
		}
	}
	if !source.IsValid() {
		return source, fmt.Errorf("interface %s has no address of the family of %s", link.Attrs().Name, t.Address)
	}
	return source, nil
}

// arp returns an ARP request (RFC 826).
func (t Target) arp(link netlink.Link, source netip.Addr) []byte {
	if t.Address.Is6() {
		return nil
	}
	packet := []byte{0, 1, 8, 0, 6, 4, 0, 1} // Ethernet, IPv4, lengths, request
	packet = append(append(packet, link.Attrs().HardwareAddr...), source.AsSlice()...)
	return append(append(packet, make([]byte, 6)...), t.Address.AsSlice()...)
}

func (t Target) answersARP(packet []byte) bool {
	const reply, length, operation, sender = 2, 28, 6, 14
	return len(packet) >= length && binary.BigEndian.Uint16(packet[operation:]) == reply && bytes.Equal(packet[sender:sender+4], t.Address.AsSlice())
}

const ipv6Header = 40

// onlyAdvertisements makes the socket receive neighbour advertisements only.
func onlyAdvertisements(socket int) error {
	raw, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 6, Size: 1}, // the next header
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_ICMPV6, SkipFalse: 3},
		bpf.LoadAbsolute{Off: ipv6Header, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(ipv6.ICMPTypeNeighborAdvertisement), SkipFalse: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return fmt.Errorf("assemble a packet filter: %w", err)
	}
	filters := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filters[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	program := &unix.SockFprog{Len: uint16(len(filters)), Filter: &filters[0]} //nolint:gosec // 6
	if err := unix.SetsockoptSockFprog(socket, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, program); err != nil {
		return fmt.Errorf("attach a packet filter: %w", err)
	}
	return nil
}

// solicitation returns a neighbour solicitation in an IPv6 packet (RFC 4861), and the link-layer address of its multicast group.
func (t Target) solicitation(link netlink.Link, source netip.Addr) (packet, to []byte, err error) {
	target := t.Address.AsSlice()
	group := append(net.ParseIP("ff02::1:ff00:0")[:13:13], target[13:]...)
	body := append(append(make([]byte, 4), target...), append([]byte{1, 1}, link.Attrs().HardwareAddr...)...) // option: source link-layer address
	message := icmp.Message{Type: ipv6.ICMPTypeNeighborSolicitation, Body: &icmp.RawBody{Data: body}}
	payload, err := message.Marshal(icmp.IPv6PseudoHeader(source.AsSlice(), group))
	if err != nil {
		return nil, nil, fmt.Errorf("build a neighbour solicitation: %w", err)
	}
	packet = make([]byte, 8, ipv6Header+len(payload))
	packet[0], packet[6], packet[7] = 6<<4, unix.IPPROTO_ICMPV6, 255 // receivers require this hop limit
	binary.BigEndian.PutUint16(packet[4:], uint16(len(payload)))     //nolint:gosec // 32
	packet = append(append(append(packet, source.AsSlice()...), group...), payload...)
	return packet, []byte{0x33, 0x33, group[12], group[13], group[14], group[15]}, nil
}

func (t Target) advertised(packet []byte) bool {
	const target = ipv6Header + 8
	return len(packet) >= target+16 && packet[6] == unix.IPPROTO_ICMPV6 && packet[7] == 255 && packet[ipv6Header] == byte(ipv6.ICMPTypeNeighborAdvertisement) &&
		bytes.Equal(packet[target:target+16], t.Address.AsSlice())
}

func networkOrder(v uint16) uint16 { return v<<8 | v>>8 }
