// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package neighbour

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// Lengths of the headers in frames.
const headerLength, header6Length = 14, 40

var frameSender = net.HardwareAddr{2, 0, 0, 0, 0, 7}

// frameOf returns a frame with tags.
func frameOf(protocol uint16, packet []byte, tags ...uint16) []byte {
	frame := append([]byte{0x33, 0x33, 0, 0, 0, 1}, frameSender...)
	for _, tag := range tags {
		frame = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(frame, unix.ETH_P_8021Q), tag)
	}
	return append(binary.BigEndian.AppendUint16(frame, protocol), packet...)
}

// advertisementOf returns a neighbour advertisement for a target, after a change of the packet. Its checksum is of the packet before.
func advertisementOf(t *testing.T, target string, change func(packet []byte)) []byte {
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

// TestFrames compares what the filter of the kernel and Parse accept. The filter does not read all that Parse does.
func TestFrames(t *testing.T) {
	arp := func(change func(packet []byte)) []byte {
		request, err := Request(Host{netip.MustParseAddr("192.0.2.7"), frameSender}, 0, netip.MustParseAddr("192.0.2.1"))
		if err != nil {
			t.Fatal(err)
		}
		packet := request[headerLength:]
		if change != nil {
			change(packet)
		}
		return packet
	}
	passes := passing(t)
	const v6 = "2001:db8::7"
	set := func(place int, value byte) func([]byte) { return func(p []byte) { p[place] = value } }
	for name, c := range map[string]struct {
		frame   []byte
		removed int // the tag that the kernel has removed
		passes  bool
		address string // empty if Parse refuses it
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
		"a malformed option":                {frameOf(unix.ETH_P_IPV6, advertisementOf(t, v6, set(header6Length+25, 0))), 0, true, "", 0},
		"half of ARP":                       {frameOf(unix.ETH_P_ARP, arp(nil)[:20]), 0, true, "", 0},
		"an advertisement":                  {frameOf(unix.ETH_P_IPV6, advertisementOf(t, v6, nil)), 0, true, v6, 0},
		"an advertisement in a VLAN":        {frameOf(unix.ETH_P_IPV6, advertisementOf(t, v6, nil), 30), 0, true, v6, 30},
		"an advertisement with padding":     {frameOf(unix.ETH_P_IPV6, append(advertisementOf(t, v6, nil), 0, 0, 0)), 0, true, v6, 0},
		"a forwarded one":                   {frameOf(unix.ETH_P_IPV6, advertisementOf(t, v6, set(7, 64))), 0, false, "", 0},
		"one with another code":             {frameOf(unix.ETH_P_IPV6, advertisementOf(t, v6, set(header6Length+1, 7))), 0, false, "", 0},
		"one with a wrong checksum":         {frameOf(unix.ETH_P_IPV6, advertisementOf(t, v6, set(header6Length+23, 8))), 0, true, "", 0},
		"one of a multicast address":        {frameOf(unix.ETH_P_IPV6, advertisementOf(t, "ff02::7", nil)), 0, true, "", 0},
		"one that is longer than its frame": {frameOf(unix.ETH_P_IPV6, advertisementOf(t, v6, set(4, 1))), 0, true, "", 0},
		"one that is too short":             {frameOf(unix.ETH_P_IPV6, advertisementOf(t, v6, set(5, 8))), 0, true, "", 0},
		"a solicitation":                    {frameOf(unix.ETH_P_IPV6, advertisementOf(t, v6, set(header6Length, 135))), 0, false, "", 0},
		"another protocol of IPv6":          {frameOf(unix.ETH_P_IPV6, advertisementOf(t, v6, set(6, unix.IPPROTO_UDP))), 0, false, "", 0},
		"another protocol":                  {frameOf(unix.ETH_P_IP, arp(nil)), 0, false, "", 0},
		"a header only":                     {frameOf(unix.ETH_P_ARP, nil), 0, true, "", 0},
		"nothing":                           {[]byte{1, 2, 3}, 0, false, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got := passes(c.frame); got != c.passes {
				t.Errorf("the filter passes the frame: %t", got)
			}
			got, ok := Parse(c.frame, c.removed)
			if ok != (c.address != "") {
				t.Fatalf("parsed: %t, %+v", ok, got)
			}
			if ok && (got.Address.String() != c.address || got.Tag != c.tag || !bytes.Equal(got.MAC, frameSender)) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// passing returns whether the filter of the kernel passes a frame.
func passing(t testing.TB) func([]byte) bool {
	t.Helper()
	instructions := make([]bpf.Instruction, len(filter))
	for i, raw := range filter {
		instructions[i] = raw.Disassemble()
	}
	machine, err := bpf.NewVM(instructions)
	if err != nil {
		t.Fatal(err)
	}
	return func(frame []byte) bool {
		length, err := machine.Run(frame)
		return err == nil && length > 0
	}
}

// TestSentFrames has the bytes of each frame, as RFC 826 and RFC 4861 define them.
func TestSentFrames(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	own4, own6 := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")
	other4, other6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::a1b2:c3d4")
	request := func(from netip.Addr, tag int, address netip.Addr) func() ([]byte, error) {
		return func() ([]byte, error) { return Request(Host{from, mac}, tag, address) }
	}
	announcement := func(address netip.Addr) func() ([]byte, error) {
		return func() ([]byte, error) { return Announcement(Host{address, mac}) }
	}
	const (
		arpHeader = "ffffffffffff 020000000007 0806"
		arpKind   = "0001 0800 06 04 0001"
		solicited = "3333ffb2c3d4 020000000007"
		group     = "ff0200000000000000000001ffb2c3d4"
	)
	for name, c := range map[string]struct {
		made func() ([]byte, error)
		want string
	}{
		"an ARP request":           {request(own4, 0, other4), arpHeader + arpKind + "020000000007 c0000207 000000000000 c0000201"},
		"an ARP probe":             {request(netip.Addr{}, 0, other4), arpHeader + arpKind + "020000000007 00000000 000000000000 c0000201"},
		"an ARP request in a VLAN": {request(own4, 30, other4), "ffffffffffff 020000000007 8100 001e 0806" + arpKind + "020000000007 c0000207 000000000000 c0000201"},
		"a gratuitous ARP request": {announcement(own4), arpHeader + arpKind + "020000000007 c0000207 000000000000 c0000207"},
		"a solicitation": {request(own6, 0, other6), solicited + "86dd 60000000 0020 3a ff 20010db8000000000000000000000007" + group +
			"8700 SUM 00000000 20010db80000000000000000a1b2c3d4 0101 020000000007"},
		"a solicitation of duplicate address detection in a VLAN": {request(netip.Addr{}, 30, other6), solicited + "8100 001e 86dd 60000000 0018 3a ff" +
			"00000000000000000000000000000000" + group + "8700 SUM 00000000 20010db80000000000000000a1b2c3d4"},
		"an unsolicited advertisement": {announcement(own6), "333300000001 020000000007 86dd 60000000 0020 3a ff 20010db8000000000000000000000007" +
			"ff020000000000000000000000000001 8800 SUM 20000000 20010db8000000000000000000000007 0201 020000000007"},
	} {
		t.Run(name, func(t *testing.T) {
			frame, err := c.made()
			if err != nil {
				t.Fatal(err)
			}
			want := strings.ReplaceAll(c.want, " ", "")
			got := hex.EncodeToString(frame)
			if at := strings.Index(want, "SUM"); at >= 0 { // the checksum is verified below
				got = got[:at] + "SUM" + got[at+4:]
				packet := frame[at/2-2-header6Length:]
				if sum := sumOf(packet); sum != 0xffff {
					t.Errorf("the checksum of the packet is wrong: the sum is %x", sum)
				}
			}
			if got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// sumOf returns the sum of an ICMPv6 message and its pseudo-header (RFC 4443, section 2.3): ffff if its checksum is right.
func sumOf(packet []byte) uint16 {
	message := packet[header6Length:]
	sum := uint32(len(message)) + unix.IPPROTO_ICMPV6
	for i, b := range append(bytes.Clone(packet[8:header6Length]), message...) {
		sum += uint32(b) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// TestAsks is the difference between a host that answers, and one that looks for another one.
func TestAsks(t *testing.T) {
	frame, err := Request(Host{netip.MustParseAddr("192.0.2.7"), frameSender}, 0, netip.MustParseAddr("192.0.2.1"))
	if err != nil {
		t.Fatal(err)
	}
	if answer, ok := Parse(frame, 0); !ok || !answer.Asks {
		t.Errorf("a request is %+v", answer)
	}
	frame[headerLength+7] = arpReply
	if answer, ok := Parse(frame, 0); !ok || answer.Asks {
		t.Errorf("a reply is %+v", answer)
	}
}

// FuzzParse reads any frame. Each one that Parse accepts passes the filter, and names an address that hosts can have.
func FuzzParse(f *testing.F) {
	for _, address := range []string{"192.0.2.7", "2001:db8::7"} {
		for _, tag := range []int{0, 30} {
			frame, err := Request(Host{netip.MustParseAddr(address), frameSender}, tag, netip.MustParseAddr(address))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(frame)
		}
		frame, err := Announcement(Host{netip.MustParseAddr(address), frameSender})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(frame)
	}
	passes := passing(f)
	f.Fuzz(func(t *testing.T, frame []byte) {
		answer, ok := Parse(frame, 0)
		if !ok {
			return
		}
		if !passes(frame) {
			t.Errorf("the filter drops a frame of %+v", answer)
		}
		if !answer.Address.IsValid() || answer.Address.Is6() && answer.Address.IsMulticast() || len(answer.MAC) != 6 || answer.Tag < 0 || answer.Tag > 4095 {
			t.Errorf("accepted %+v", answer)
		}
	})
}
