// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package neighbour

import (
	"fmt"
	"net"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// Listen opens a packet socket that receives ARP packets and neighbour advertisements of an interface with an EtherType, unix.ETH_P_ALL for all, also before a bridge takes them.
func Listen(index int, protocol uint16) (*packet.Conn, error) {
	conn, err := packet.Listen(&net.Interface{Index: index}, packet.Raw, int(protocol), &packet.Config{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	return conn, nil
}

// Send sends a frame of this package by a socket of Listen.
func Send(conn *packet.Conn, frame []byte) error {
	if _, err := conn.WriteTo(frame, &packet.Addr{HardwareAddr: frame[:6]}); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// filter passes ARP packets and neighbour advertisements to a packet socket, so that other traffic of the interface costs nothing. It passes all frames that
// Parse accepts, and reads less of them. A frame has its tag in place only if the kernel has not removed it.
var filter = assemble()

func assemble() []bpf.RawInstruction {
	const all = 1 << 16
	const place, length6 = 14, 40 // of a packet in an untagged frame, and the length of header6
	// at returns the filter for a packet whose EtherType is before a place; both results are in its last two instructions.
	at := func(place uint32) []bpf.Instruction {
		return []bpf.Instruction{
			bpf.LoadAbsolute{Off: place - 2, Size: 2},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_ARP, SkipTrue: 5},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_IPV6, SkipFalse: 5},
			bpf.LoadAbsolute{Off: place + 6, Size: 2}, // the next header, and the hop limit
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_ICMPV6<<8 | ownNetwork, SkipFalse: 3},
			bpf.LoadAbsolute{Off: place + length6, Size: 2}, // the type, and code 0
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(ipv6.ICMPTypeNeighborAdvertisement) << 8, SkipFalse: 1},
			bpf.RetConstant{Val: all},
			bpf.RetConstant{Val: 0},
		}
	}
	tagged := at(place + 4)
	raw, err := bpf.Assemble(append(append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: place - 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_8021Q, SkipFalse: uint8(len(tagged))}, //nolint:gosec // 9
	}, tagged...), at(place)...))
	if err != nil {
		panic(fmt.Sprintf("assemble the filter of neighbours: %v", err)) // of constants
	}
	return raw
}
