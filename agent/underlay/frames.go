// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	v1 "github.com/kiln-net/kiln/api/v1"

	"github.com/kiln-net/kiln/agent/ovs"
)

// A host that has an address answers a probe within a few milliseconds. A probe can be lost, so there are two.
const (
	probes    = 2
	probeWait = 150 * time.Millisecond
)

// CheckDuplicates returns an error that names the host if a host of the physical network has an address of an underlay pod. It does not check
// virtual machines: during a migration, a machine has its addresses on two nodes.
func CheckDuplicates(ctx context.Context, bridge *ovs.Bridge, network v1.PodNetwork) error {
	if network.ProviderNetwork == "" || network.Machine != "" {
		return nil
	}
	ready, err := readyResult(ctx, bridge, network.ProviderNetwork)
	if err != nil {
		return err
	}
	holder, err := FindHolder(ready.Interface, network.VLAN, network.Addresses, network.MAC)
	if err != nil || holder == nil {
		return err
	}
	return fmt.Errorf("AddressConflict: host %s of ProviderNetwork %s has address %s: add it to excludeIps of subnet %s, and create the pod again",
		holder.MAC, network.ProviderNetwork, holder.Address, network.LogicalSwitch)
}

// Holder is another host on a physical network that has an address of a pod.
type Holder struct {
	Address netip.Addr
	MAC     net.HardwareAddr
}

// FindHolder returns a host on the physical network that has one of the addresses, nil if none answers. It sends ARP probes (RFC 5227, section
// 2.1.1) and neighbour solicitations of duplicate address detection (RFC 4862, section 5.4.2) from the node's interface, with the tag of the VLAN.
// They pass no logical port, so port security does not drop them. Answers with the MAC address own are the pod's.
func FindHolder(name string, tag int, addresses []netip.Addr, own net.HardwareAddr) (*Holder, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find interface %s: %w", name, err)
	}
	p, err := newProber(link, tag)
	if err != nil {
		return nil, fmt.Errorf("probe addresses on %s: %w", link.Attrs().Name, err)
	}
	defer unix.Close(p.socket)
	for range probes {
		for _, address := range addresses {
			if err := p.probe(address); err != nil {
				return nil, fmt.Errorf("probe %s on %s: %w", address, link.Attrs().Name, err)
			}
		}
		holder, err := p.listen(time.Now().Add(probeWait), addresses, own)
		if holder != nil || err != nil {
			return holder, err
		}
	}
	return nil, nil //nolint:nilnil // no host answers
}

// prober sends and receives frames of one VLAN.
type prober struct {
	socket int
	mac    net.HardwareAddr
	tag    int
}

func newProber(link netlink.Link, tag int) (*prober, error) {
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	multicast := &unix.PacketMreq{Ifindex: int32(link.Attrs().Index), Type: unix.PACKET_MR_ALLMULTI} //nolint:gosec // an index of the kernel
	err = errors.Join(
		unix.SetsockoptInt(socket, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1),
		unix.SetsockoptPacketMreq(socket, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, multicast),
		unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: link.Attrs().Index}))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("prepare a packet socket: %w", err), unix.Close(socket))
	}
	return &prober{socket: socket, mac: link.Attrs().HardwareAddr, tag: tag}, nil
}

// probe sends one probe.
func (p *prober) probe(address netip.Addr) error {
	to, protocol, packet := net.HardwareAddr{255, 255, 255, 255, 255, 255}, uint16(unix.ETH_P_ARP), p.arpProbe(address)
	if address.Is6() {
		var err error
		protocol = unix.ETH_P_IPV6
		if to, packet, err = solicitation(address); err != nil {
			return err
		}
	}
	frame := append(bytes.Clone(to), p.mac...)
	if p.tag != 0 {
		frame = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(frame, unix.ETH_P_8021Q), uint16(p.tag)) //nolint:gosec // at most 4095
	}
	frame = append(binary.BigEndian.AppendUint16(frame, protocol), packet...)
	_, err := unix.Write(p.socket, frame)
	return err
}

// arpProbe is an ARP request whose sender has no address (RFC 826, RFC 5227).
func (p *prober) arpProbe(address netip.Addr) []byte {
	const ethernet, macLength, ipLength, request = 1, 6, 4, 1
	packet := binary.BigEndian.AppendUint16(nil, ethernet)
	packet = binary.BigEndian.AppendUint16(packet, unix.ETH_P_IP)
	packet = binary.BigEndian.AppendUint16(append(packet, macLength, ipLength), request)
	packet = append(append(packet, p.mac...), make([]byte, ipLength+macLength)...)
	return append(packet, address.AsSlice()...)
}

// solicitation is a neighbour solicitation without a source address, to the solicited-node multicast address (RFC 4861, section 4.3).
func solicitation(address netip.Addr) (net.HardwareAddr, []byte, error) {
	const hops, version = 255, 0x60
	target := address.As16()
	group := netip.MustParseAddr("ff02::1:ff00:0").As16()
	copy(group[13:], target[13:])
	message := icmp.Message{Type: ipv6.ICMPTypeNeighborSolicitation, Body: &icmp.RawBody{Data: append(make([]byte, 4), target[:]...)}}
	body, err := message.Marshal(icmp.IPv6PseudoHeader(net.IPv6unspecified, group[:]))
	if err != nil {
		return nil, nil, fmt.Errorf("build a neighbour solicitation: %w", err)
	}
	packet := binary.BigEndian.AppendUint16([]byte{version, 0, 0, 0}, uint16(len(body))) //nolint:gosec // 24 bytes
	packet = append(append(packet, unix.IPPROTO_ICMPV6, hops), net.IPv6unspecified...)
	return append(net.HardwareAddr{0x33, 0x33}, group[12:]...), append(append(packet, group[:]...), body...), nil
}

// listen returns the first host that answers for one of the addresses before the deadline.
func (p *prober) listen(deadline time.Time, addresses []netip.Addr, own net.HardwareAddr) (*Holder, error) {
	frame, control := make([]byte, 256), make([]byte, 128)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return nil, nil //nolint:nilnil // no host answers
		}
		timeout := unix.NsecToTimeval(max(left, time.Millisecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(p.socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
			return nil, fmt.Errorf("set the timeout of a packet socket: %w", err)
		}
		length, controlLength, _, from, err := unix.Recvmsg(p.socket, frame, control, 0)
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, fmt.Errorf("receive from a packet socket: %w", err)
		}
		if link, ok := from.(*unix.SockaddrLinklayer); ok && link.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		holder := answer(frame[:length], tagOf(control[:controlLength]), p.tag)
		if holder == nil || bytes.Equal(holder.MAC, own) || bytes.Equal(holder.MAC, p.mac) {
			continue
		}
		for _, address := range addresses {
			if address == holder.Address {
				return holder, nil
			}
		}
	}
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

// answer returns the sender of an ARP packet or of a neighbour advertisement in the VLAN want, nil for other frames. removed is the tag that the
// kernel has removed from the frame.
func answer(frame []byte, removed, want int) *Holder {
	const macs, advertisement, header = 12, 136, 40
	if len(frame) < macs+2 {
		return nil
	}
	sender, protocol, packet := net.HardwareAddr(bytes.Clone(frame[6:macs])), binary.BigEndian.Uint16(frame[macs:]), frame[macs+2:]
	if protocol == unix.ETH_P_8021Q && len(packet) >= 4 {
		removed, protocol, packet = int(binary.BigEndian.Uint16(packet)&0xfff), binary.BigEndian.Uint16(packet[2:]), packet[4:]
	}
	var address netip.Addr
	switch {
	case removed != want:
		return nil
	case protocol == unix.ETH_P_ARP && len(packet) >= 18: // RFC 826: the sender's protocol address at 14
		address, _ = netip.AddrFromSlice(packet[14:18])
	case protocol == unix.ETH_P_IPV6 && len(packet) >= header+24 && packet[6] == unix.IPPROTO_ICMPV6 && packet[header] == advertisement:
		address, _ = netip.AddrFromSlice(packet[header+8 : header+24])
	default:
		return nil
	}
	return &Holder{Address: address, MAC: sender}
}

// networkOrder returns a number of 16 bits as the kernel reads it in network byte order.
func networkOrder(n uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], n)
	return binary.NativeEndian.Uint16(b[:])
}
