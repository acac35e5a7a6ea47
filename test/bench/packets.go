// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"
)

// The sizes of headers in octets, and the constants of the frames that the bench sends: IPv4 with TCP, and ARP.
const (
	ethernetHeader, ipv4Header, tcpHeader, arpPacket = 14, 20, 20, 28

	etherTypeIPv4, etherTypeARP = 0x0800, 0x0806
	protocolTCP, arpReply       = 6, 2
	flagSYN                     = 2
)

// station is one end of a probe.
type station struct {
	mac net.HardwareAddr
	ip  netip.Addr
}

// synFrame returns an Ethernet frame with a TCP SYN. Open vSwitch's connection tracker checks both checksums.
func synFrame(from, to station, sourcePort, port uint16) []byte {
	tcp := binary.BigEndian.AppendUint16(nil, sourcePort)
	tcp = binary.BigEndian.AppendUint16(tcp, port)
	tcp = append(tcp, 0, 0, 0, 1, 0, 0, 0, 0, tcpHeader/4<<4, flagSYN, 0xff, 0xff, 0, 0, 0, 0)
	pseudo := slices.Concat(from.ip.AsSlice(), to.ip.AsSlice(), []byte{0, protocolTCP, 0, tcpHeader})
	binary.BigEndian.PutUint16(tcp[16:], checksum(append(pseudo, tcp...)))

	ip := []byte{0x45, 0, 0, ipv4Header + tcpHeader, 0, 0, 0, 0, 64, protocolTCP, 0, 0}
	ip = slices.Concat(ip, from.ip.AsSlice(), to.ip.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	return slices.Concat(ethernet(from, to, etherTypeIPv4), ip, tcp)
}

// markerFrame returns an ARP reply, which policies never drop, followed by a number.
func markerFrame(from, to station, number uint16) []byte {
	arp := []byte{0, 1, 8, 0, 6, 4, 0, arpReply}
	arp = slices.Concat(arp, from.mac, from.ip.AsSlice(), to.mac, to.ip.AsSlice())
	return binary.BigEndian.AppendUint16(append(ethernet(from, to, etherTypeARP), arp...), number)
}

func ethernet(from, to station, etherType uint16) []byte {
	return binary.BigEndian.AppendUint16(slices.Concat(to.mac, from.mac), etherType)
}

// checksum is the Internet checksum of RFC 1071. The length is even.
func checksum(content []byte) uint16 {
	var sum uint32
	for i := 0; i < len(content); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(content[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// parseFrame returns the source port of a TCP frame, or the number of a marker. It returns false for other frames.
func parseFrame(frame []byte) (number uint16, marker, ok bool) {
	if len(frame) < ethernetHeader {
		return 0, false, false
	}
	switch etherType := binary.BigEndian.Uint16(frame[12:]); {
	case etherType == etherTypeIPv4 && len(frame) >= ethernetHeader+ipv4Header+tcpHeader && frame[ethernetHeader+9] == protocolTCP:
		return binary.BigEndian.Uint16(frame[ethernetHeader+ipv4Header:]), false, true
	case etherType == etherTypeARP && len(frame) >= ethernetHeader+arpPacket+2:
		number = binary.BigEndian.Uint16(frame[ethernetHeader+arpPacket:])
		return number, true, number > 0 // zero is the padding of other ARP packets
	}
	return 0, false, false
}

// writeFrame sends a frame to a dummy interface of Open vSwitch: the length in two octets, then the frame (lib/netdev-dummy.c).
func writeFrame(to io.Writer, frame []byte) error {
	content := binary.BigEndian.AppendUint16(nil, uint16(len(frame)))
	if _, err := to.Write(append(content, frame...)); err != nil {
		return fmt.Errorf("send a packet: %w", err)
	}
	return nil
}

// readFrame receives a frame from a dummy interface.
func readFrame(from io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return nil, fmt.Errorf("receive a packet: %w", err)
	}
	frame := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(from, frame); err != nil {
		return nil, fmt.Errorf("receive a packet: %w", err)
	}
	return frame, nil
}

// outcome is what happened to a probe.
type outcome struct {
	// server is the index of the server that the probe has reached, or that it has not reached if passed is false.
	server int
	passed bool
	at     time.Time
}

// receive reports the outcome of each probe to a server, until the connection ends. The bench sends each probe's marker after the
// probe, and Open vSwitch keeps the order: a marker without its probe shows that the probe was dropped.
func receive(from io.Reader, server int, outcomes chan<- outcome) {
	last := -1
	for {
		frame, err := readFrame(from)
		if err != nil {
			return // ovs-vswitchd has ended, which the bench reports, or the bench ends
		}
		number, marker, ok := parseFrame(frame)
		if !ok || marker && last == int(number) {
			continue
		}
		last = int(number)
		outcomes <- outcome{server: server, passed: !marker, at: time.Now()}
	}
}

// firstSourcePort of probes. The ports repeat after a minute; Open vSwitch forgets a connection without a reply after 30 s.
const firstSourcePort = 1024

// stream is a SYN that is sent repeatedly, each time from another source port.
type stream struct {
	from, to station
	port     uint16
	// marked sends a marker after each SYN. It is not set for a Service, whose address no port has.
	marked bool
}

// prober sends probes from the client's port and receives their outcomes.
type prober struct {
	client   io.Writer
	outcomes chan outcome
	next     uint16
}

// send sends one probe.
func (p *prober) send(what stream) error {
	p.next = max(p.next+1, firstSourcePort)
	err := writeFrame(p.client, synFrame(what.from, what.to, p.next, what.port))
	if what.marked {
		err = errors.Join(err, writeFrame(p.client, markerFrame(what.from, what.to, p.next)))
	}
	return err
}

// same reports whether o is the outcome of a probe, at any time.
func (o outcome) same(probe outcome) bool {
	return o.server == probe.server && o.passed == probe.passed
}

func (o outcome) String() string {
	return fmt.Sprintf("%s server %d", map[bool]string{true: "reaches", false: "does not reach"}[o.passed], o.server)
}

// drain discards the outcomes of earlier probes.
func (p *prober) drain() {
	for {
		select {
		case <-p.outcomes:
		default:
			return
		}
	}
}
