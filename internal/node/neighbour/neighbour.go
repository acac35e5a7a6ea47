// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package neighbour makes and reads the Ethernet frames by which hosts find the hardware address of an IP address: ARP (RFC 826) for IPv4, and neighbour
// discovery (RFC 4861) for IPv6.
package neighbour

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/ndp"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// Host is a host of an Ethernet.
type Host struct {
	Address netip.Addr
	MAC     net.HardwareAddr
}

// header begins an Ethernet frame without tags.
type header struct {
	To, From [6]byte
	Protocol uint16
}

// arp is an ARP packet for IPv4 on Ethernet.
type arp struct {
	Kind      arpKind
	Operation uint16
	Sender    arpHost
	Target    arpHost
}

// arpKind is the same in all packets: Ethernet, IPv4, and the lengths of their addresses.
type arpKind struct {
	Hardware, Protocol uint16
	Lengths            [2]uint8
}

type arpHost struct {
	MAC     [6]byte
	Address [4]byte
}

var ethernetIPv4 = arpKind{Hardware: 1, Protocol: unix.ETH_P_IP, Lengths: [2]uint8{6, 4}}

// Operations of ARP.
const (
	arpRequest = 1
	arpReply   = 2
)

// header6 begins an IPv6 packet.
type header6 struct {
	Version     uint8
	_           [3]uint8
	Length      uint16
	Next, Hops  uint8
	Source      [16]byte
	Destination [16]byte
}

const (
	version6 = 6 << 4
	// ownNetwork is the hop limit of neighbour discovery. It shows that no router has forwarded the packet (RFC 4861, section 7.1).
	ownNetwork = 255
)

var broadcast = [6]byte{255, 255, 255, 255, 255, 255}

// Protocol returns the EtherType of the frames for an address.
func Protocol(address netip.Addr) uint16 {
	if address.Is4() {
		return unix.ETH_P_ARP
	}
	return unix.ETH_P_IPV6
}

// Request returns a frame that asks for the host with an address, in a VLAN if the tag is not 0: an ARP request or a neighbour solicitation. Without the sender's address it is an ARP
// probe (RFC 5227) or a solicitation of duplicate address detection (RFC 4862), which does not change the neighbour tables of other hosts.
func Request(from Host, tag int, address netip.Addr) ([]byte, error) {
	if address.Is4() {
		packet := arp{Kind: ethernetIPv4, Operation: arpRequest, Target: arpHost{Address: address.As4()}}
		copy(packet.Sender.MAC[:], from.MAC)
		if from.Address.Is4() {
			packet.Sender.Address = from.Address.As4()
		}
		return frame(broadcast, from.MAC, tag, unix.ETH_P_ARP, packet)
	}
	group, err := ndp.SolicitedNodeMulticast(address)
	if err != nil {
		return nil, fmt.Errorf("solicit %s: %w", address, err)
	}
	message, source := &ndp.NeighborSolicitation{TargetAddress: address}, netip.IPv6Unspecified()
	if from.Address.Is6() {
		source = from.Address
		message.Options = []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: from.MAC}}
	}
	return discovery(from.MAC, tag, source, group, message)
}

// Announcement returns a frame to all hosts by which those that know the address with another hardware address use the host's own at once: a gratuitous ARP request
// (RFC 5227, section 3) or an unsolicited neighbour advertisement with the override flag (RFC 4861, section 7.2.6).
func Announcement(of Host) ([]byte, error) {
	if of.Address.Is4() {
		return Request(of, 0, of.Address)
	}
	return discovery(of.MAC, 0, of.Address, netip.IPv6LinkLocalAllNodes(), &ndp.NeighborAdvertisement{
		Override: true, TargetAddress: of.Address, Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: of.MAC}},
	})
}

// discovery returns the frame of a message of neighbour discovery to a multicast group.
func discovery(from net.HardwareAddr, tag int, source, group netip.Addr, message ndp.Message) ([]byte, error) {
	body, err := ndp.MarshalMessageChecksum(message, source, group)
	if err != nil {
		return nil, fmt.Errorf("build a message of neighbour discovery: %w", err)
	}
	to := group.As16()
	multicast := [6]byte{0x33, 0x33, to[12], to[13], to[14], to[15]} // RFC 2464, section 7
	packet := header6{
		Version: version6, Length: uint16(len(body)), Next: unix.IPPROTO_ICMPV6, Hops: ownNetwork, //nolint:gosec // 32 bytes
		Source: source.As16(), Destination: to,
	}
	return frame(multicast, from, tag, unix.ETH_P_IPV6, packet, body)
}

// frame returns an Ethernet frame with the parts of a packet, which have fixed sizes.
func frame(to [6]byte, from net.HardwareAddr, tag int, protocol uint16, parts ...any) ([]byte, error) {
	made := append(bytes.Clone(to[:]), from...)
	if tag != 0 {
		made = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(made, unix.ETH_P_8021Q), uint16(tag)) //nolint:gosec // at most 4095
	}
	made = binary.BigEndian.AppendUint16(made, protocol)
	for _, part := range parts {
		var err error
		if made, err = binary.Append(made, binary.BigEndian, part); err != nil {
			return nil, fmt.Errorf("build a frame: %w", err)
		}
	}
	return made, nil
}

// Answer is a host that a frame names, in a VLAN.
type Answer struct {
	Host
	Tag int
	// Asks is set if the frame is not an answer: the host looks for another one by ARP.
	Asks bool
}

// Parse returns the sender of an ARP packet or of a neighbour advertisement; false for other frames. tag is the tag that the kernel has removed from the
// frame. A second tag within it belongs to the network that the first one selects, and is no VLAN of the interface.
func Parse(frame []byte, tag int) (Answer, bool) {
	var head header
	length, err := binary.Decode(frame, binary.BigEndian, &head)
	if err != nil {
		return Answer{}, false
	}
	protocol, packet := head.Protocol, frame[length:]
	if protocol == unix.ETH_P_8021Q && len(packet) >= 4 && tag == 0 {
		tag, protocol, packet = int(binary.BigEndian.Uint16(packet)&0xfff), binary.BigEndian.Uint16(packet[2:]), packet[4:]
	}
	answer := Answer{Tag: tag, Host: Host{MAC: bytes.Clone(head.From[:])}}
	switch protocol {
	case unix.ETH_P_ARP:
		var a arp
		if _, err := binary.Decode(packet, binary.BigEndian, &a); err != nil || a.Kind != ethernetIPv4 {
			return Answer{}, false
		}
		answer.Address, answer.Asks = netip.AddrFrom4(a.Sender.Address), a.Operation != arpReply
	case unix.ETH_P_IPV6:
		answer.Address = advertised(packet)
	}
	return answer, answer.Address.IsValid()
}

// advertised returns the target of a packet that hosts accept as a neighbour advertisement (RFC 4861, section 7.1.2); invalid for other packets.
func advertised(packet []byte) netip.Addr {
	var head header6
	length, err := binary.Decode(packet, binary.BigEndian, &head)
	if err != nil || head.Next != unix.IPPROTO_ICMPV6 || head.Hops != ownNetwork || len(packet) < length+int(head.Length) {
		return netip.Addr{}
	}
	text := packet[length : length+int(head.Length)]
	message, err := ndp.ParseMessage(text)
	advertisement, is := message.(*ndp.NeighborAdvertisement)
	if err != nil || !is || advertisement.TargetAddress.IsMulticast() {
		return netip.Addr{}
	}
	// The same message with code 0 and the right checksum.
	valid := icmp.Message{Type: ipv6.ICMPTypeNeighborAdvertisement, Body: &icmp.RawBody{Data: text[4:]}}
	if sum, err := valid.Marshal(icmp.IPv6PseudoHeader(head.Source[:], head.Destination[:])); err != nil || !bytes.Equal(sum, text) {
		return netip.Addr{}
	}
	return advertisement.TargetAddress
}
