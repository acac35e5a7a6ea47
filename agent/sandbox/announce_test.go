// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/testutils"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/agent/sandbox"
)

// A pod's neighbours must use its hardware address at once when an earlier pod had its addresses with another one.
func TestAddressesAreAnnounced(t *testing.T) {
	namespace, err := testutils.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(namespace.Close(), testutils.UnmountNS(namespace)) })
	i := sandbox.Interface{
		NetNS: namespace.Path(), Name: "eth0", HostName: sandbox.HostName("announced", "eth0", 0), MTU: 1400, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9},
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.16.0.9/24"), netip.MustParsePrefix("fd00:10:16::9/64")},
	}
	if err := errors.Join(i.Create(), i.Configure()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sandbox.Remove(i.HostName) })

	frames := capture(t, i.HostName)
	if err := i.Announce(); err != nil {
		t.Fatal(err)
	}
	arp, na := i.Addresses[0].Addr().As4(), i.Addresses[1].Addr().As16()
	deadline := time.Now().Add(10 * time.Second)
	for hasARP, hasNA := false, false; !hasARP || !hasNA; {
		if time.Now().After(deadline) {
			t.Fatalf("gratuitous ARP seen: %v, unsolicited neighbour advertisement seen: %v", hasARP, hasNA)
		}
		frame := frames()
		if len(frame) < 14 || !bytes.Equal(frame[6:12], i.MAC) {
			continue
		}
		packet := frame[14:]
		switch binary.BigEndian.Uint16(frame[12:]) {
		case unix.ETH_P_ARP: // RFC 826: sender hardware and protocol address at 8 and 14, target protocol address at 24
			hasARP = hasARP || len(packet) >= 28 && bytes.Equal(packet[8:14], i.MAC) && bytes.Equal(packet[14:18], arp[:]) && bytes.Equal(packet[24:28], arp[:])
		case unix.ETH_P_IPV6: // RFC 4861, section 4.4: type 136, the flag override, the target at 8
			const advertisement, override = 136, 0x20
			if len(packet) >= 64 && packet[6] == unix.IPPROTO_ICMPV6 && packet[40] == advertisement && bytes.Equal(packet[48:64], na[:]) {
				hasNA = true
				if packet[44]&override == 0 {
					t.Errorf("the advertisement does not override known addresses: %s", hex.EncodeToString(packet))
				}
			}
		}
	}
}

// capture returns a function that reads the next frame that a device of this namespace receives; nil after 100 ms without a frame.
func capture(t *testing.T, device string) func() []byte {
	t.Helper()
	link, err := net.InterfaceByName(device)
	if err != nil {
		t.Fatal(err)
	}
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}) // in network byte order
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, int(all))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(socket) })
	wait := unix.NsecToTimeval(int64(100 * time.Millisecond))
	if err := errors.Join(
		unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}),
		unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
	); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 2048)
	return func() []byte {
		n, _, err := unix.Recvfrom(socket, buffer, 0)
		if err != nil {
			return nil
		}
		return buffer[:n]
	}
}
