// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package nbtest

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/kiln-net/kiln/internal/testing/eventually"
)

// Datagram is a UDP datagram in Ethernet frames.
type Datagram struct {
	SrcMAC, DstMAC net.HardwareAddr
	Src, Dst       netip.AddrPort
	Payload        []byte
}

const (
	protocolUDP      = 17
	protocolFragment = 44   // RFC 8200, section 4.5
	fragmentSize     = 1400 // of a datagram in each fragment; a multiple of 8
)

// Frames returns the frames of the datagram, several if it needs fragments.
func (d Datagram) Frames() [][]byte {
	udp := binary.BigEndian.AppendUint16(nil, d.Src.Port())
	udp = binary.BigEndian.AppendUint16(udp, d.Dst.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(d.Payload)))
	udp = append(append(udp, 0, 0), d.Payload...)
	pseudo := slices.Concat(d.Src.Addr().AsSlice(), d.Dst.Addr().AsSlice(), binary.BigEndian.AppendUint32(nil, uint32(len(udp))), []byte{0, 0, 0, protocolUDP})
	binary.BigEndian.PutUint16(udp[6:], checksum(append(pseudo, udp...)))
	var frames [][]byte
	for offset := 0; offset < len(udp); offset += fragmentSize {
		part := udp[offset:min(len(udp), offset+fragmentSize)]
		frames = append(frames, d.frame(part, offset, offset+len(part) < len(udp)))
	}
	return frames
}

// frame returns the frame of a part of the datagram. more: other parts follow.
func (d Datagram) frame(part []byte, offset int, more bool) []byte {
	var flags uint16
	if more {
		flags = 1
	}
	frame := append(slices.Clone(d.DstMAC), d.SrcMAC...)
	if d.Src.Addr().Is4() {
		header := []byte{0x45, 0, 0, 0, 0x12, 0x34, 0, 0, 64, protocolUDP, 0, 0}
		binary.BigEndian.PutUint16(header[2:], uint16(20+len(part)))
		binary.BigEndian.PutUint16(header[6:], flags<<13|uint16(offset/8))
		header = append(append(header, d.Src.Addr().AsSlice()...), d.Dst.Addr().AsSlice()...)
		binary.BigEndian.PutUint16(header[10:], checksum(header))
		return slices.Concat(frame, []byte{0x08, 0}, header, part)
	}
	next, extension := byte(protocolUDP), []byte(nil)
	if more || offset > 0 {
		next = protocolFragment
		extension = binary.BigEndian.AppendUint16([]byte{protocolUDP, 0}, uint16(offset)|flags)
		extension = append(extension, 0, 0, 0x12, 0x34)
	}
	header := []byte{0x60, 0, 0, 0, 0, 0, next, 64}
	binary.BigEndian.PutUint16(header[4:], uint16(len(extension)+len(part)))
	header = append(append(header, d.Src.Addr().AsSlice()...), d.Dst.Addr().AsSlice()...)
	return slices.Concat(frame, []byte{0x86, 0xdd}, header, extension, part)
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// Send makes a port of the chassis receive frames from its interface.
func (c *Chassis) Send(port string, frames ...[]byte) {
	c.northd.nb.t.Helper()
	digits := make([]string, 0, len(frames))
	for _, frame := range frames {
		digits = append(digits, hex.EncodeToString(frame))
	}
	c.Inject(port, digits...)
}

// Receives waits until the interface of a port has got a frame that contains b.
func (c *Chassis) Receives(port string, b []byte) {
	c.northd.nb.t.Helper()
	eventually.Wait{For: "a frame at port " + port + " of chassis " + c.name}.Holds(c.northd.nb.t, func() bool { return c.Received(port, b) })
}

// Received reports whether the interface of a port has got a frame that contains b.
func (c *Chassis) Received(port string, b []byte) bool {
	c.northd.nb.t.Helper()
	captured, err := os.ReadFile(c.capture(port))
	if err != nil {
		c.northd.nb.t.Fatal(err)
	}
	return bytes.Contains(captured, b)
}

// capture is the file to which Open vSwitch writes the frames that it sends to a port's interface.
func (c *Chassis) capture(port string) string { return filepath.Join(c.database.dir, port+".pcap") }
