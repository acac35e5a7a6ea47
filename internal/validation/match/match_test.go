// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package match

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// good are matches that OVN accepts.
var good = []string{
	"1", "0", "ip", "ip4", "!eth.bcast", "ip4 && tcp", "tcp || udp || sctp", "(ip4 && tcp) || (ip6 && udp)", "!(ct.new && ct.est)", "ct.trk == 1", "ct.est == 0",
	"ip4.src == 10.16.0.0/16", "ip4.src == 10.0.0.1/255.0.0.255", "ip4.src != 10.16.0.0/16", "10.0.0.1 == ip4.dst", "ip4.src == 0/0", "ip4.src == 0.0.0.0/0",
	"ip6.src == fd00::/64", "ip6.dst == ::1", "ip6.dst == fd00::1/ffff::", "ip6.dst == ::ffff:10.0.0.1", "ip6.src == {fd00::1, fe80::/10}", "ip6.mcast && !ip6.mcast_all_nodes",
	"eth.src == 0a:00:00:00:00:01", "eth.src == 0a:00:00:00:00:01/ff:ff:ff:00:00:00", "eth.src[0..15] > 0x1111", "eth.dst[40]", "eth.mcast",
	"eth.type == 0x800", "eth.type == 0x0800", "eth.type[0..15] == 0x800", "ip.proto == {6, 17}", "!(ip.proto != 6)", "!ip.proto",
	"tcp.dst == 80", "tcp.dst == {80, 443}", "tcp.dst == {80 443,}", "1024 <= tcp.src <= 65535", "9 > tcp.src >= 0x1", "tcp.dst >= 1024 && tcp.dst < 2048", "80 == tcp.dst", "tcp.dst != {80, 443}",
	"tcp.dst == 0/0x1", "tcp.dst == 0x50/0xf0", "tcp.flags == 0x2/0x12", "tcp.flags[1]", "!tcp.dst", "udp.dst[3]",
	`inport == "web-0.shop"`, `inport == {"a", "b\u0041"}`, `outport == @group`, `inport == {@group, "a"}`,
	"ip4.src == $set", "ip4.src == {$set, 10.0.0.1}", "ip4.src == $a.set_1", "$set == ip4.src", "ip4.src != $set", `is_chassis_resident("a")`, `!is_chassis_resident("a")`,
	"icmp4.type == 8 && icmp4.code == 0", "nd_ns && nd.target == fd00::1", "arp.op == 1 && arp.tpa == 10.0.0.1", "vlan.present && vlan.vid == 12", "ip.frag != 0", "ip.is_frag", "!ip.first_frag",
	"ip.ttl == 1", "ip.dscp == 46", "ip6.label == 0xfffff", "pkt.mark == 0xffffffff", "ct_state == 0x21/0x21", "  ip4\n&&\ttcp  ", "ct.snat || ct.dnat", "1 && ip4", "(((ip4)))", "ip4 == 1", "igmp", "mldv2",
	"ip4.src == {10.0.0.0/8}", "ip4.mcast == 0", "eth.src == fe:ff:ff:ff:ff:ff",
}

// bad are matches that OVN rejects, and parts of our messages.
var bad = []struct{ match, message string }{
	{"", "at its end: a comparison is missing"},
	{"   ", "a comparison is missing"},
	{"ip4.src = 10.0.0.1", "at character 9, `=`: write =="},
	{"ip4 & tcp", "write &&"},
	{"ip4 and tcp", "at character 5, `and`: the match should end here"},
	{`inport == "äö" and tcp`, "at character 16, `and`: the match should end here"},
	{"ip4 && tcp || udp", "at character 12, `||`: && and || are mixed"},
	{"ip4 || tcp && udp", "are mixed"},
	{"ip4 &&", "a comparison is missing"},
	{"(ip4", "at its end: the parenthesis is not closed"},
	{"ip4)", "the match should end here"},
	{"()", "at character 2, `)`: a comparison should stand here"},
	{"!ip4.src == 10.0.0.1", "at character 1, `!`: put parentheses"},
	{"!ip4", "OVN can only test whether ip4 is true"},
	{"!tcp", "whether tcp is true"},
	{"ip4 == 0", "whether ip4 is true"},
	{"!(ip4 && tcp)", "whether ip4 is true"},
	{"ip.proto != 6", "OVN can only compare ip.proto for equality"},
	{"!(ip.proto == 6)", "not for inequality"},
	{"!(inport == \"a\")", "not for inequality"},
	{`inport != "a" && ip4`, `like inport == {"a", "b"}`},
	{"ip.frag", "it has 2 bits"},
	{"ip.proto > 6", "ip.proto can only be compared with == and !="},
	{"ip4.mcast > 0", "can only be compared with"},
	{"ip.proto[0..3] == 1", "only be compared as a whole"},
	{"ip.proto", "it has 8 bits: compare it"},
	{"tcp.dst", "like tcp.dst != 0"},
	{"tcp.dst[0..3]", "it has 4 bits"},
	{"ip.src == 10.0.0.1", "write ip4.src or ip6.src"},
	{"tcp.port == 80", "write tcp.dst"},
	{"nonsense", "write one of ovn-sb(5)"},
	{"true", "write 1"},
	{"ip4.src == 10.0.0.256", "`10.0.0.256`: this is no number and no address"},
	{"ip4.src == 10.0.0.0/33", "it has 32 bits"},
	{"ip6.src == fd00::/129", "it has 128 bits"},
	{"ip4.src == 10.0.0.0/fd00::", "written in different ways"},
	{"ip4.src == 10.0.0.0 / 8", "a mask stands right behind"},
	{"tcp.dst == 80/8x", "the mask is wrong"},
	{"ip4.src == fd00::1", "ip4.src holds 32 bits, and this takes 128"},
	{"tcp.dst == 65536", "holds 16 bits, and this takes 17"},
	{"tcp.dst == 080", "no leading zero"},
	{"tcp.dst == 99999999999999999999", "too great"},
	{"tcp.dst == 0x", "no number"},
	{"eth.src == 0a:00:00:00:00", "no number and no address"},
	{"tcp.dst == 10.0.0.1", "takes 32"},
	{"tcp.dst == {80, 65536}", "takes 17"},
	{"tcp.dst == {}", "the set is empty"},
	{"tcp.dst == {80", "a constant should stand here"},
	{"tcp.dst == {80, \"a\"}", "are mixed in one set"},
	{"tcp.dst > {80, 443}", "a set can only be compared"},
	{"ip4.src > 10.0.0.0/8", "select bits instead"},
	{"tcp.dst == ", "a constant should stand here"},
	{"tcp.dst == port", "a constant should stand here"},
	{"inport == web-0", `written "in quotes"`},
	{"inport == 5", `inport is a string: write "name"`},
	{`tcp.dst == "80"`, "not a string"},
	{"inport", "inport is a string: compare it"},
	{"inport[0] == 1", "it is a string and has no bits"},
	{"inport == 'a'", "double quotes"},
	{`inport == "a`, "does not end"},
	{`inport == "a\x"`, "no string of JSON"},
	{"tcp.dst[3..1] == 1", "write the lower bit first: tcp.dst[1..3]"},
	{"tcp.dst[0..16] == 1", "it has bits 0 to 15"},
	{"tcp.dst[a] == 1", "the number of a bit"},
	{"tcp.dst[1 == 1", "write ]"},
	{"1 < tcp.dst > 2", "a range has the form"},
	{"1 == tcp.dst == 2", "a range has the form"},
	{"5", "a constant alone is no comparison"},
	{"0x1", "a constant alone"},
	{"1 < 2", "the name of a field should stand here"},
	{"10.0.0.1 ip4.src", "a constant alone"},
	{"ip4.src == $", "the name of a set"},
	{"ip4.src == $5", "the name of a set"},
	{"inport == @", "the name of a set"},
	{"ip4.src == 10.0.0.1; drop", "this character means nothing"},
	{"is_chassis_resident", "write is_chassis_resident("},
	{"is_chassis_resident(a)", "write is_chassis_resident("},
	{"f(ip4)", "there is no such field"},
	{"ip4.src == 10.0.0.1-10.0.0.9", "write a range as"},
	{"ip4\x00", "this character"},
	{"ip4 && ü", "this character"},
	{strings.Repeat("(", 101) + "ip4" + strings.Repeat(")", 101), "parentheses are open"},
}

// strict are matches that OVN accepts and this package rejects.
var strict = []struct{ match, message string }{
	{"reg0 == 1", "belongs to OVN itself"},
	{"reg0[7]", "belongs to OVN itself"},
	{"xxreg1 == fd00::1", "belongs to OVN itself"},
	{"flags.loopback", "belongs to OVN itself"},
	{"ct_mark.blocked", "belongs to OVN itself"},
	{"ct_label == 1", "belongs to OVN itself"},
	{"ip4 // && tcp", "no comments"},
	{"ip4 /* all */ && tcp", "no comments"},
	{"ip6.src == 10.0.0.1", "this is an IPv4 one"},
}

func TestMatchesThatOVNTakes(t *testing.T) {
	for _, text := range good {
		if _, err := Parse(text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestWrongMatchesAreExplained(t *testing.T) {
	for _, tt := range append(bad, strict...) {
		_, err := Parse(tt.match)
		var wrong *Error
		switch {
		case !errors.As(err, &wrong):
			t.Errorf("%q is taken", tt.match)
		case !strings.Contains(err.Error(), tt.message):
			t.Errorf("%q is refused %v, want %s", tt.match, err, tt.message)
		case !strings.Contains(tt.match, wrong.Text) || wrong.Text != "" && !strings.HasPrefix(tt.match[wrong.Offset:], wrong.Text):
			t.Errorf("%q is not wrong at %d, `%s`", tt.match, wrong.Offset, wrong.Text)
		}
	}
}

func TestReferencesOfAMatch(t *testing.T) {
	got, err := Parse(`inport == @b && ip4.src == {$s, $r} && (tcp.dst[0..3] == 1 || inport == {@a, @b}) && tcp`)
	if err != nil {
		t.Fatal(err)
	}
	want := Match{Fields: []string{"inport", "ip4.src", "tcp", "tcp.dst"}, AddressSets: []string{"r", "s"}, PortGroups: []string{"a", "b"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
	if !got.Uses("inport") || got.Uses("outport") {
		t.Error("the fields are not those it uses")
	}
}
