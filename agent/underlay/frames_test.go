// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

var frameSender = net.HardwareAddr{2, 0, 0, 0, 0, 7}

// frameOf returns a frame with tags.
func frameOf(protocol uint16, packet []byte, tags ...uint16) []byte {
	frame := append([]byte{0x33, 0x33, 0, 0, 0, 1}, frameSender...)
	for _, tag := range tags {
		frame = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(frame, unix.ETH_P_8021Q), tag)
	}
	return append(binary.BigEndian.AppendUint16(frame, protocol), packet...)
}

// advertised returns a neighbour advertisement for a target, after a change of the packet. Its checksum is of the packet before.
func advertised(t *testing.T, target string, change func(packet []byte)) []byte {
	t.Helper()
	source, group := netip.MustParseAddr("fe80::7").AsSlice(), netip.MustParseAddr("ff02::1").AsSlice()
	data := append([]byte{0x20, 0, 0, 0}, netip.MustParseAddr(target).AsSlice()...)
	data = append(append(data, 2, 1), frameSender...)
	message := icmp.Message{Type: ipv6.ICMPTypeNeighborAdvertisement, Body: &icmp.RawBody{Data: data}}
	body, err := message.Marshal(icmp.IPv6PseudoHeader(source, group))
	if err != nil {
		t.Fatal(err)
	}
	packet := binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(body)))
	packet = append(append(append(packet, unix.IPPROTO_ICMPV6, 255), source...), group...)
	packet = append(packet, body...)
	if change != nil {
		change(packet)
	}
	return packet
}

// TestFrames compares what the filter of the kernel and parse accept. The filter does not read all that parse does.
func TestFrames(t *testing.T) {
	arp := func(change func(packet []byte)) []byte {
		packet := arpRequest(sender{frameSender, netip.MustParseAddr("192.0.2.7")}, netip.MustParseAddr("192.0.2.1"))
		if change != nil {
			change(packet)
		}
		return packet
	}
	program, err := filter()
	if err != nil {
		t.Fatal(err)
	}
	raw := make([]bpf.Instruction, len(program))
	for i, p := range program {
		raw[i] = bpf.RawInstruction{Op: p.Code, Jt: p.Jt, Jf: p.Jf, K: p.K}.Disassemble()
	}
	machine, err := bpf.NewVM(raw)
	if err != nil {
		t.Fatal(err)
	}
	const v6 = "2001:db8::7"
	set := func(place int, value byte) func([]byte) { return func(p []byte) { p[place] = value } }
	for name, c := range map[string]struct {
		frame   []byte
		removed int // the tag that the kernel has removed
		passes  bool
		address string // empty if parse refuses it
		tag     int
	}{
		"ARP":                               {frameOf(unix.ETH_P_ARP, arp(nil)), 0, true, "192.0.2.7", 0},
		"ARP in a VLAN":                     {frameOf(unix.ETH_P_ARP, arp(nil), 30), 0, true, "192.0.2.7", 30},
		"ARP with a removed tag":            {frameOf(unix.ETH_P_ARP, arp(nil)), 30, true, "192.0.2.7", 30},
		"ARP with a second tag":             {frameOf(unix.ETH_P_ARP, arp(nil), 30), 10, true, "", 0},
		"ARP with two tags":                 {frameOf(unix.ETH_P_ARP, arp(nil), 10, 30), 0, false, "", 0},
		"ARP of another network":            {frameOf(unix.ETH_P_ARP, arp(set(1, 6))), 0, true, "", 0},
		"ARP of another protocol":           {frameOf(unix.ETH_P_ARP, arp(set(2, 0x86))), 0, true, "", 0},
		"ARP with longer addresses":         {frameOf(unix.ETH_P_ARP, arp(set(5, 16))), 0, true, "", 0},
		"half of ARP":                       {frameOf(unix.ETH_P_ARP, arp(nil)[:20]), 0, true, "", 0},
		"an advertisement":                  {frameOf(unix.ETH_P_IPV6, advertised(t, v6, nil)), 0, true, v6, 0},
		"an advertisement in a VLAN":        {frameOf(unix.ETH_P_IPV6, advertised(t, v6, nil), 30), 0, true, v6, 30},
		"an advertisement with padding":     {frameOf(unix.ETH_P_IPV6, append(advertised(t, v6, nil), 0, 0, 0)), 0, true, v6, 0},
		"a forwarded one":                   {frameOf(unix.ETH_P_IPV6, advertised(t, v6, set(7, 64))), 0, false, "", 0},
		"one with another code":             {frameOf(unix.ETH_P_IPV6, advertised(t, v6, set(headerV6+1, 7))), 0, false, "", 0},
		"one with a wrong checksum":         {frameOf(unix.ETH_P_IPV6, advertised(t, v6, set(headerV6+23, 8))), 0, true, "", 0},
		"one of a multicast address":        {frameOf(unix.ETH_P_IPV6, advertised(t, "ff02::7", nil)), 0, true, "", 0},
		"one that is longer than its frame": {frameOf(unix.ETH_P_IPV6, advertised(t, v6, set(4, 1))), 0, true, "", 0},
		"one that is too short":             {frameOf(unix.ETH_P_IPV6, advertised(t, v6, set(5, 8))), 0, true, "", 0},
		"a solicitation":                    {frameOf(unix.ETH_P_IPV6, advertised(t, v6, set(headerV6, 135))), 0, false, "", 0},
		"another protocol of IPv6":          {frameOf(unix.ETH_P_IPV6, advertised(t, v6, set(6, unix.IPPROTO_UDP))), 0, false, "", 0},
		"another protocol":                  {frameOf(unix.ETH_P_IP, arp(nil)), 0, false, "", 0},
		"a header only":                     {frameOf(unix.ETH_P_ARP, nil), 0, true, "", 0},
		"nothing":                           {[]byte{1, 2, 3}, 0, false, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			if length, err := machine.Run(c.frame); err != nil || length > 0 != c.passes {
				t.Errorf("the filter passes %d bytes, %v", length, err)
			}
			got, ok := parse(c.frame, c.removed)
			if ok != (c.address != "") {
				t.Fatalf("parsed: %t, %+v", ok, got)
			}
			if ok && (got.Address.String() != c.address || got.tag != c.tag || !bytes.Equal(got.MAC, frameSender)) {
				t.Errorf("got %+v", got)
			}
		})
	}
}
