// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package match

import (
	"strings"
)

// level is OVN's level of measurement of a symbol, which limits its comparisons (ovn-sb(5), "Symbols").
type level uint8

const (
	ordinal level = iota // bits that can be masked and ordered
	boolean              // a predicate of ordinal fields: can be negated
	nominal              // only equality, and not negated
)

// symbol is a field or a predicate.
type symbol struct {
	bits      int // 0 for a string
	level     level
	predicate bool
	ip6       bool // its values are IPv6 addresses
	selected  int  // number of bits that the match selects
	low       int  // the lowest of them
}

// symbols are OVN 25.03's symbols for packet fields. Symbols internal to OVN are excluded.
var symbols = func() map[string]symbol {
	all := map[string]symbol{"inport": {level: nominal}, "outport": {level: nominal}}
	add := func(s symbol, names string) {
		for name := range strings.FieldsSeq(names) {
			s.selected = s.bits
			all[name] = s
		}
	}
	for bits, names := range map[int]string{
		1:   "ct.new ct.est ct.rel ct.rpl ct.inv ct.trk ct.snat ct.dnat eth.mcast",
		2:   "ip.frag",
		3:   "vlan.pcp",
		12:  "vlan.vid tcp.flags",
		16:  "vlan.tci tcp.src tcp.dst udp.src udp.dst sctp.src sctp.dst",
		20:  "ip6.label",
		32:  "ct_state ip4.src ip4.dst arp.spa arp.tpa rarp.spa rarp.tpa pkt.mark",
		48:  "eth.src eth.dst arp.sha arp.tha rarp.sha rarp.tha nd.sll nd.tll",
		128: "ip6.src ip6.dst nd.target",
	} {
		add(symbol{bits: bits, level: ordinal, ip6: bits == 128}, names)
	}
	for bits, names := range map[int]string{
		2:  "ip.ecn",
		6:  "ip.dscp",
		8:  "ip.proto ip.ttl icmp4.type icmp4.code icmp6.type icmp6.code",
		16: "eth.type arp.op rarp.op",
	} {
		add(symbol{bits: bits, level: nominal}, names)
	}
	add(symbol{bits: 1, level: boolean, predicate: true}, `eth.bcast eth.mcastv6 vlan.present ip4.src_mcast ip4.mcast ip6.mcast_rsvd
		ip6.mcast_all_nodes ip6.mcast_all_rtrs ip6.mcast_sol_node ip6.mcast_flood ip6.mcast ip.is_frag ip.later_frag ip.first_frag`)
	add(symbol{bits: 1, level: nominal, predicate: true}, `ip4 ip6 ip icmp4 icmp6 icmp igmp arp rarp nd nd_ns nd_ns_mcast nd_na nd_rs nd_ra
		mldv1 mldv2 tcp udp sctp`)
	return all
}()

// reserved are prefixes of the names that OVN uses for state between its own tables.
var reserved = []string{"reg", "xreg", "xxreg", "flags", "ct_mark", "ct_label"}

// instead maps plausible names that are no fields to the correct ones.
var instead = map[string]string{
	"ip.src": "ip4.src or ip6.src", "ip.dst": "ip4.dst or ip6.dst", "src": "ip4.src or ip6.src", "dst": "ip4.dst or ip6.dst",
	"port": "tcp.dst or udp.dst", "tcp.port": "tcp.dst", "udp.port": "udp.dst", "ipv4": "ip4", "ipv6": "ip6", "icmpv6": "icmp6", "vlan": "vlan.present",
	"and": "&&", "or": "||", "not": "!", "true": "1", "false": "0",
}

// unknown returns a message with a replacement for a name that is no field.
func unknown(name string) string {
	if meant, ok := instead[strings.ToLower(name)]; ok {
		return "there is no such field: write " + meant
	}
	for _, prefix := range reserved {
		if rest, ok := strings.CutPrefix(name, prefix); ok && (rest == "" || rest[0] == '.' || rest[0] >= '0' && rest[0] <= '9') {
			return "this belongs to OVN itself and means something else in its next version: match on fields of packets"
		}
	}
	return "there is no such field: write one of ovn-sb(5), like ip4.src, tcp.dst or inport"
}
