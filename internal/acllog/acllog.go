// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package acllog reads the lines in which ovn-controller logs packets that match ACLs (`log` in the table ACL of ovn-nb(5)). A line has the name of an ACL and fields
// of a packet, and other programs write to the same log, so only lines of exactly this form are read.
package acllog

import (
	"encoding/json"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Packet is a packet that ovn-controller has logged.
type Packet struct {
	Time time.Time
	// ACL is the name of the ACL, of at most 63 bytes.
	ACL string
	// Verdict is allow, drop, pass or reject.
	Verdict string
	// ToPort: the ACL is about packets to logical ports, and not from them.
	ToPort bool
	// Protocol is tcp, udp, sctp, icmp, igmp, or the number of another one.
	Protocol            string
	Source, Destination netip.Addr
	// SourcePort and DestinationPort are 0 for protocols without ports, and in fragments other than the first one.
	SourcePort, DestinationPort uint16
	// Type is the type of an ICMP packet.
	Type uint8
}

const (
	// maxLine is the maximum number of bytes of a line: the longest lines of ovn-controller have about 600.
	maxLine = 4 << 10
	maxName = 63
)

// form matches a line: time, number, module with its thread, level, and the message (acl_log in OVN's lib/acl-log.c, vlog(7)).
var form = regexp.MustCompile(`^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?Z)\|\d+\|acl_log(?:\([a-z0-9_]+\))?\|INFO\|name=("(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*"), ` +
	`verdict=(allow|drop|pass|reject), severity=(?:alert|warning|notice|info|debug), direction=(to-lport|from-lport): ([a-z0-9]+)((?:,[a-z0-9_]+=[0-9a-zA-Z:./|_+-]*)+)$`)

// protocols are the names of protocols at the beginning of a flow (ovs-fields(7)); "" if the field nw_proto has the number.
var protocols = map[string]struct {
	name string
	ipv6 bool
}{
	"ip": {}, "icmp": {name: "icmp"}, "igmp": {name: "igmp"}, "tcp": {name: "tcp"}, "udp": {name: "udp"}, "sctp": {name: "sctp"},
	"ipv6": {ipv6: true}, "icmp6": {name: "icmp", ipv6: true}, "tcp6": {name: "tcp", ipv6: true}, "udp6": {name: "udp", ipv6: true}, "sctp6": {name: "sctp", ipv6: true},
}

// Parse reads a line, without its end. It returns false for any other text.
func Parse(line string) (Packet, bool) {
	if len(line) > maxLine {
		return Packet{}, false
	}
	parts := form.FindStringSubmatch(line)
	if parts == nil {
		return Packet{}, false
	}
	protocol, known := protocols[parts[5]]
	fields, unique := read(parts[6])
	p := Packet{Verdict: parts[3], ToPort: parts[4] == "to-lport", Protocol: protocol.name}
	at, err := time.Parse(time.RFC3339, parts[1])
	if !known || !unique || err != nil || json.Unmarshal([]byte(parts[2]), &p.ACL) != nil || len(p.ACL) > maxName {
		return Packet{}, false
	}
	p.Time = at
	source, destination := "nw_src", "nw_dst"
	if protocol.ipv6 {
		source, destination = "ipv6_src", "ipv6_dst"
	}
	ok := address(fields[source], protocol.ipv6, &p.Source) && address(fields[destination], protocol.ipv6, &p.Destination)
	switch p.Protocol {
	case "":
		var number uint8
		ok = ok && parse(fields["nw_proto"], &number)
		p.Protocol = strconv.Itoa(int(number))
	case "icmp":
		ok = ok && parse(fields["icmp_type"], &p.Type)
	case "tcp", "udp", "sctp":
		ok = ok && parse(fields["tp_src"], &p.SourcePort) && parse(fields["tp_dst"], &p.DestinationPort)
	}
	if !ok {
		return Packet{}, false
	}
	return p, true
}

// read returns the fields of a flow, `,name=value,…`, and whether each occurs once.
func read(text string) (fields map[string]string, unique bool) {
	fields, unique = map[string]string{}, true
	for field := range strings.SplitSeq(text[1:], ",") {
		name, value, _ := strings.Cut(field, "=")
		_, again := fields[name]
		fields[name], unique = value, unique && !again
	}
	return fields, unique
}

func address(text string, ipv6 bool, into *netip.Addr) bool {
	a, err := netip.ParseAddr(text)
	*into = a
	return err == nil && a.Is6() == ipv6 && a.Zone() == ""
}

// parse reads a decimal number.
func parse[T uint8 | uint16](text string, into *T) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	*into = T(n)
	return err == nil && uint64(*into) == n
}
