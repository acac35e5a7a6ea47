// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"math/big"
	"net"
	"net/netip"
	"strings"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/validation/match"
)

// ephemeral is the source port of a client whose system chooses it (RFC 6335, section 6).
const ephemeral = 49152

// packet is the first packet of a connection at one place of its way.
type packet struct {
	model    *model
	src, dst netip.Addr
	protocol string
	port     uint16
	source   uint16
	mac      net.HardwareAddr // of the sender; nil if it is not known
	inport   string
	outport  string
	// chassis is the node whose Open vSwitch evaluates matches; empty if it is not known.
	chassis string
	// resident are the ports on that node besides its own.
	resident string
	// looped: a load balancer has returned the packet to its sender.
	looped bool
}

var (
	yes = big.NewInt(1)
	no  = new(big.Int)
)

func flag(is bool) (*big.Int, match.Truth) {
	if is {
		return yes, match.True
	}
	return no, match.True
}

// predicate is the value of a predicate: the packet has it or not.
func predicate(is bool) (*big.Int, match.Truth) {
	if is {
		return yes, match.True
	}
	return nil, match.False
}

func number(n int, has bool) (*big.Int, match.Truth) {
	if !has {
		return nil, match.False
	}
	return big.NewInt(int64(n)), match.True
}

func addressValue(a netip.Addr, has bool) (*big.Int, match.Truth) {
	if !has {
		return nil, match.False
	}
	return new(big.Int).SetBytes(a.AsSlice()), match.True
}

// Field implements match.Packet.
func (p packet) Field(name string) (*big.Int, match.Truth) {
	v4 := p.dst.Is4()
	l4 := p.protocol == TCP || p.protocol == UDP || p.protocol == SCTP
	of, field, _ := strings.Cut(name, ".")
	switch of {
	case "ip", "ip4", "ip6":
		if of == "ip4" && !v4 || of == "ip6" && v4 {
			return nil, match.False
		}
		return p.ipField(field, v4)
	case TCP, UDP, SCTP:
		switch field {
		case "":
			return predicate(of == p.protocol)
		case "dst":
			return number(int(p.port), l4 && of == p.protocol)
		case "src":
			return number(int(p.source), l4 && of == p.protocol)
		case "flags":
			return number(2, of == p.protocol) // SYN
		}
	case "icmp", "icmp4", "icmp6":
		is := p.protocol == ICMP && (of == "icmp" || (of == "icmp4") == v4)
		switch field {
		case "":
			return predicate(is)
		case "type":
			if v4 {
				return number(8, is)
			}
			return number(128, is)
		case "code":
			return number(0, is)
		}
	case "ct":
		return flag(field == "new" || field == "trk")
	case "flags":
		return flag(p.looped)
	case "eth":
		return p.ethernet(field, v4)
	}
	return nil, match.Unknown
}

var protocols = map[string]int{TCP: 6, UDP: 17, SCTP: 132}

func (p packet) ipField(field string, v4 bool) (*big.Int, match.Truth) {
	switch field {
	case "":
		return yes, match.True
	case "src":
		return addressValue(p.src, true)
	case "dst":
		return addressValue(p.dst, true)
	case "proto":
		if p.protocol == ICMP {
			if v4 {
				return number(1, true)
			}
			return number(58, true)
		}
		return number(protocols[p.protocol], true)
	case "ttl":
		return number(64, true)
	case "frag", "is_frag", "later_frag", "first_frag", "mcast", "src_mcast":
		return no, match.True
	}
	return nil, match.Unknown
}

func (p packet) ethernet(field string, v4 bool) (*big.Int, match.Truth) {
	switch field {
	case "type":
		if v4 {
			return number(0x800, true)
		}
		return number(0x86dd, true)
	case "src":
		if p.mac != nil {
			return new(big.Int).SetBytes(p.mac), match.True
		}
	case "mcast", "bcast", "mcastv6":
		return no, match.True
	case "dst":
		return no, match.True // some host's; matches on it name single hosts
	}
	return nil, match.Unknown
}

// Port implements match.Packet.
func (p packet) Port(field string) (string, match.Truth) {
	name := p.inport
	if field == "outport" {
		name = p.outport
	}
	if name == "" {
		return "", match.Unknown
	}
	return name, match.True
}

// InGroup implements match.Packet.
func (p packet) InGroup(port, group string) match.Truth {
	if p.model.userSet(group) {
		return match.Unknown
	}
	if p.model.members[p.model.sets[group]][port] {
		return match.True
	}
	return match.False
}

// InSet implements match.Packet.
func (p packet) InSet(value *big.Int, field, set string) match.Truth {
	if field == "eth.dst" || field == "eth.src" {
		return match.False // the addresses of OVN's own monitors
	}
	if p.model.userSet(set) {
		return match.Unknown
	}
	addr := p.src
	if strings.HasSuffix(field, ".dst") {
		addr = p.dst
	}
	switch {
	case new(big.Int).SetBytes(addr.AsSlice()).Cmp(value) != 0:
		return match.Unknown
	case p.model.members[p.model.sets[set]][addr.String()]:
		return match.True
	case p.model.vague[addr]:
		return match.Unknown
	}
	return match.False
}

// Resident implements match.Packet.
func (p packet) Resident(port string) match.Truth {
	if p.chassis == "" {
		return match.Unknown
	}
	if port == kubeovnv1.NodePortName(p.chassis) || port == p.resident && port != "" {
		return match.True
	}
	return match.False
}

func familyOf(a netip.Addr) ipfamily.Family { return ipfamily.Of(a) }
