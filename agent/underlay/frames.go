// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/net/bpf"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// sender is the source of a probe. A probe without an address does not change the neighbour tables of other hosts.
type sender struct {
	mac     net.HardwareAddr
	address netip.Addr
}

// probe returns a frame that asks for the host with an address: an ARP request (RFC 826; without a sender's address an ARP probe, RFC 5227) or a
// neighbour solicitation (RFC 4861, section 4.3; without a sender's address one of duplicate address detection, RFC 4862).
func probe(from sender, tag int, address netip.Addr) ([]byte, error) {
	to, protocol, packet := net.HardwareAddr{255, 255, 255, 255, 255, 255}, uint16(unix.ETH_P_ARP), arpRequest(from, address)
	if address.Is6() {
		var err error
		protocol = unix.ETH_P_IPV6
		if to, packet, err = solicitation(from, address); err != nil {
			return nil, err
		}
	}
	frame := append(bytes.Clone(to), from.mac...)
	if tag != 0 {
		frame = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(frame, unix.ETH_P_8021Q), uint16(tag)) //nolint:gosec // at most 4095
	}
	return append(binary.BigEndian.AppendUint16(frame, protocol), packet...), nil
}

func arpRequest(from sender, address netip.Addr) []byte {
	const ethernet, macLength, ipLength, request = 1, 6, 4, 1
	source := make([]byte, ipLength)
	if from.address.Is4() {
		source = from.address.AsSlice()
	}
	packet := binary.BigEndian.AppendUint16(nil, ethernet)
	packet = binary.BigEndian.AppendUint16(packet, unix.ETH_P_IP)
	packet = binary.BigEndian.AppendUint16(append(packet, macLength, ipLength), request)
	packet = append(append(append(packet, from.mac...), source...), make([]byte, macLength)...)
	return append(packet, address.AsSlice()...)
}

// solicitation returns a neighbour solicitation and the address of its frame, the solicited-node multicast address.
func solicitation(from sender, address netip.Addr) (net.HardwareAddr, []byte, error) {
	const hops, version, sourceLinkLayer, lengthOf8 = 255, 0x60, 1, 1
	target, source := address.As16(), netip.IPv6Unspecified()
	group := netip.MustParseAddr("ff02::1:ff00:0").As16()
	copy(group[13:], target[13:])
	data := append(make([]byte, 4), target[:]...)
	if from.address.Is6() {
		source, data = from.address, append(append(data, sourceLinkLayer, lengthOf8), from.mac...)
	}
	message := icmp.Message{Type: ipv6.ICMPTypeNeighborSolicitation, Body: &icmp.RawBody{Data: data}}
	body, err := message.Marshal(icmp.IPv6PseudoHeader(source.AsSlice(), group[:]))
	if err != nil {
		return nil, nil, fmt.Errorf("build a neighbour solicitation: %w", err)
	}
	packet := binary.BigEndian.AppendUint16([]byte{version, 0, 0, 0}, uint16(len(body))) //nolint:gosec // 32 bytes
	packet = append(append(packet, unix.IPPROTO_ICMPV6, hops), source.AsSlice()...)
	return append(net.HardwareAddr{0x33, 0x33}, group[12:]...), append(append(packet, group[:]...), body...), nil
}

// Places in frames, the type of neighbour advertisements, and the hop limit with which hosts of the same network send them: no router has forwarded them, and OVN's
// port security checks their contents (RFC 4861, section 7.1.2).
const (
	macs, headerV6, advertisement, ownNetwork = 12, 40, 136, 255
	etherType, untagged, oneTagged            = macs, macs + 2, macs + 6
)

// filter passes ARP packets and neighbour advertisements to a socket, so that other traffic of the interface costs the agent nothing. A frame has
// its tag in place only if the kernel has not removed it.
func filter() ([]unix.SockFilter, error) {
	const all = 1 << 16
	// at returns the filter for an EtherType at a place; both results are in its last two instructions.
	at := func(place uint32) []bpf.Instruction {
		return []bpf.Instruction{
			bpf.LoadAbsolute{Off: place, Size: 2},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_ARP, SkipTrue: 5},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IPV6, SkipFalse: 5},
			bpf.LoadAbsolute{Off: place + 2 + 6, Size: 2}, // the next header, and the hop limit
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_ICMPV6<<8 | ownNetwork, SkipFalse: 3},
			bpf.LoadAbsolute{Off: place + 2 + headerV6, Size: 2}, // the type, and code 0
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: advertisement << 8, SkipFalse: 1},
			bpf.RetConstant{Val: all},
			bpf.RetConstant{Val: 0},
		}
	}
	tagged := at(etherType + 4)
	program := append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: etherType, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_8021Q, SkipFalse: uint8(len(tagged))}, //nolint:gosec // 9
	}, append(tagged, at(etherType)...)...)
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("assemble the filter of a packet socket: %w", err)
	}
	instructions := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		instructions[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return instructions, nil
}

// answer is a host that has an address, in a VLAN.
type answer struct {
	tag int
	Holder
}

// parse returns the sender of an ARP packet or of a neighbour advertisement; false for other frames. tag is the tag that the kernel has removed
// from the frame. A second tag within it belongs to the network that the first one selects, and is no VLAN of the interface.
func parse(frame []byte, tag int) (answer, bool) {
	if len(frame) < untagged {
		return answer{}, false
	}
	sender, protocol, packet := net.HardwareAddr(bytes.Clone(frame[6:macs])), binary.BigEndian.Uint16(frame[etherType:]), frame[untagged:]
	if protocol == unix.ETH_P_8021Q && len(frame) >= oneTagged && tag == 0 {
		tag, protocol, packet = int(binary.BigEndian.Uint16(packet)&0xfff), binary.BigEndian.Uint16(packet[2:]), packet[4:]
	}
	var address netip.Addr
	switch {
	case protocol == unix.ETH_P_ARP && isARP(packet):
		address, _ = netip.AddrFromSlice(packet[14:18]) // the sender's protocol address
	case protocol == unix.ETH_P_IPV6 && isAdvertisement(packet):
		address, _ = netip.AddrFromSlice(packet[headerV6+8 : headerV6+24]) // the target
	default:
		return answer{}, false
	}
	return answer{tag: tag, Holder: Holder{Address: address, MAC: sender}}, true
}

// isARP reports whether a packet is one of ARP for IPv4 on Ethernet (RFC 826).
func isARP(packet []byte) bool {
	return len(packet) >= 28 && bytes.Equal(packet[:6], []byte{0, 1, 8, 0, 6, 4})
}

// isAdvertisement reports whether hosts accept a packet as a neighbour advertisement (RFC 4861, section 7.1.2).
func isAdvertisement(packet []byte) bool {
	if len(packet) < headerV6+24 || packet[6] != unix.IPPROTO_ICMPV6 || packet[7] != ownNetwork {
		return false
	}
	length := int(binary.BigEndian.Uint16(packet[4:]))
	if length < 24 || len(packet) < headerV6+length {
		return false
	}
	message := packet[headerV6 : headerV6+length]
	return message[0] == advertisement && message[1] == 0 && message[8] != 0xff && checksum(packet[8:headerV6], message) == 0
}

// checksum returns the checksum of an ICMPv6 message with its pseudo-header (RFC 4443, section 2.3): 0 if the message has the right one.
func checksum(addresses, message []byte) uint16 {
	sum := uint32(len(message)) + unix.IPPROTO_ICMPV6 //nolint:gosec // at most 65535
	for _, part := range [][]byte{addresses, message} {
		for i, b := range part {
			sum += uint32(b) << (8 * (1 - i%2))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// tagOf returns the VLAN tag that the kernel has removed from a frame (packet(7), PACKET_AUXDATA); 0 if there was none.
func tagOf(control []byte) int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return 0
	}
	for _, m := range messages {
		// struct tpacket_auxdata: status, lengths and offsets of 16 bytes, then the tag.
		if m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= 18 &&
			binary.NativeEndian.Uint32(m.Data)&unix.TP_STATUS_VLAN_VALID != 0 {
			return int(binary.NativeEndian.Uint16(m.Data[16:]) & 0xfff)
		}
	}
	return 0
}

// networkOrder returns a number of 16 bits as the kernel reads it in network byte order.
func networkOrder(n uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], n)
	return binary.NativeEndian.Uint16(b[:])
}
