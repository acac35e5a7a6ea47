// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package acllog_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/acllog"
)

// Lines of OVN 25.03, from the log of an ovn-controller. The test of internal/northbound reads lines of the installed version.
const (
	head = `2026-11-30T16:01:56Z|00009|acl_log(ovn_pinctrl0)|INFO|name="np/closed.ns/egress/default", verdict=drop, severity=warning, direction=from-lport: `
	eth  = `vlan_tci=0x0000,dl_src=02:01:00:00:00:02,dl_dst=02:01:00:00:00:03,`
	v4   = `nw_src=10.16.0.2,nw_dst=10.16.0.3,`
	v6   = `ipv6_src=fd00:16::2,ipv6_dst=fd00:16::3,ipv6_label=0x00000,`
	rest = `nw_tos=0,nw_ecn=0,nw_ttl=64,nw_frag=no`
	tcp  = head + "tcp," + eth + v4 + rest + ",tp_src=40001,tp_dst=80,tcp_flags=psh|ack"
)

func TestLines(t *testing.T) {
	ends := func(protocol string, six bool) acllog.Packet {
		p := acllog.Packet{Time: time.Date(2026, 11, 30, 16, 1, 56, 0, time.UTC), ACL: "np/closed.ns/egress/default", Verdict: "drop", Protocol: protocol}
		p.Source, p.Destination = netip.MustParseAddr("10.16.0.2"), netip.MustParseAddr("10.16.0.3")
		if six {
			p.Source, p.Destination = netip.MustParseAddr("fd00:16::2"), netip.MustParseAddr("fd00:16::3")
		}
		return p
	}
	with := func(p acllog.Packet, f func(*acllog.Packet)) acllog.Packet { f(&p); return p }
	ports := func(protocol string, six bool) acllog.Packet {
		return with(ends(protocol, six), func(p *acllog.Packet) { p.SourcePort, p.DestinationPort = 40001, 80 })
	}
	typed := func(six bool, number uint8) acllog.Packet {
		return with(ends("icmp", six), func(p *acllog.Packet) { p.Type = number })
	}
	for line, want := range map[string]acllog.Packet{
		tcp: ports("tcp", false),
		head + "tcp6," + eth + v6 + rest + ",tp_src=40001,tp_dst=80,tcp_flags=syn":                             ports("tcp", true),
		head + "udp," + eth + v4 + rest + ",tp_src=40001,tp_dst=80":                                            ports("udp", false),
		head + "udp6," + eth + v6 + rest + ",tp_src=40001,tp_dst=80":                                           ports("udp", true),
		head + "sctp," + eth + v4 + rest + ",tp_src=40001,tp_dst=80":                                           ports("sctp", false),
		head + "sctp6," + eth + v6 + rest + ",tp_src=40001,tp_dst=80":                                          ports("sctp", true),
		head + "tcp," + eth + v4 + "nw_tos=0,nw_frag=later,tp_src=0,tp_dst=0":                                  ends("tcp", false),
		head + "icmp," + eth + v4 + rest + ",icmp_type=8,icmp_code=0":                                          typed(false, 8),
		head + "icmp6," + eth + v6 + rest + ",icmp_type=128,icmp_code=0":                                       typed(true, 128),
		head + "igmp," + eth + v4 + rest:                                                                       ends("igmp", false),
		head + "ip," + eth + v4 + "nw_proto=112," + rest:                                                       ends("112", false),
		head + "ipv6," + eth + v6 + "nw_proto=112," + rest:                                                     ends("112", true),
		strings.Replace(tcp, "56Z", "56.123Z", 1):                                                              with(ports("tcp", false), func(p *acllog.Packet) { p.Time = p.Time.Add(123 * time.Millisecond) }),
		strings.Replace(tcp, "(ovn_pinctrl0)", "", 1):                                                          ports("tcp", false),
		strings.NewReplacer("drop,", "allow,", "warning", "info").Replace(tcp):                                 with(ports("tcp", false), func(p *acllog.Packet) { p.Verdict = "allow" }),
		strings.Replace(tcp, "from-lport", "to-lport", 1):                                                      with(ports("tcp", false), func(p *acllog.Packet) { p.ToPort = true }),
		strings.Replace(tcp, "np/closed.ns/egress/default", "<unnamed>", 1):                                    with(ports("tcp", false), func(p *acllog.Packet) { p.ACL = "<unnamed>" }),
		strings.Replace(tcp, "np/closed.ns/egress/default", `a\", verdict=allow, \u001b[2J\\`, 1):              with(ports("tcp", false), func(p *acllog.Packet) { p.ACL = "a\", verdict=allow, \x1b[2J\\" }),
		strings.Replace(tcp, "np/closed.ns/egress/default", "", 1):                                             with(ports("tcp", false), func(p *acllog.Packet) { p.ACL = "" }),
		strings.Replace(tcp, "np/closed.ns/egress/default", strings.Repeat("n", 63), 1):                        with(ports("tcp", false), func(p *acllog.Packet) { p.ACL = strings.Repeat("n", 63) }),
		strings.Replace(head+"tcp6,"+eth+v6+rest+",tp_src=40001,tp_dst=80", "fd00:16::2", "::ffff:1.2.3.4", 1): with(ports("tcp", true), func(p *acllog.Packet) { p.Source = netip.MustParseAddr("::ffff:1.2.3.4") }),
	} {
		if got, ok := acllog.Parse(line); !ok || got != want {
			t.Errorf("%s:\n%+v (%t), want\n%+v", line, got, ok, want)
		}
	}
}

// TestOtherTextIsNoPacket has texts that a node, or another program in its log, could write.
func TestOtherTextIsNoPacket(t *testing.T) {
	replace := func(old, new string) string {
		changed := strings.Replace(tcp, old, new, 1)
		if changed == tcp {
			t.Fatalf("no %q", old)
		}
		return changed
	}
	for name, line := range map[string]string{
		"nothing":                           "",
		"JSON of Kiln's process":            `{"level":"info","msg":"` + strings.ReplaceAll(tcp, `"`, `\"`) + `"}`,
		"text before":                       "x" + tcp,
		"text after":                        tcp + " x",
		"a line end":                        tcp + "\n",
		"a second line":                     tcp + "\n" + tcp,
		"another module":                    replace("acl_log(", "pinctrl("),
		"another level":                     replace("|INFO|", "|WARN|"),
		"no number":                         replace("|00009|", "||"),
		"no time":                           replace("2026-11-30T16:01:56Z", "yesterday"),
		"an impossible time":                replace("2026-11-30T16:01:56Z", "2026-99-30T16:01:56Z"),
		"a time with many digits":           replace("56Z", "56.0000000000Z"),
		"a name without quotes":             replace(`"np/closed.ns/egress/default"`, "np"),
		"a name that does not end":          replace(`default"`, `default\"`),
		"a wrong escape":                    replace("closed", `\q`),
		"a control character in the name":   replace("closed", "\x1b[2J"),
		"a long name":                       replace("closed", strings.Repeat("n", 64)),
		"another verdict":                   replace("verdict=drop", "verdict=DROP"),
		"another severity":                  replace("severity=warning", "severity=fatal"),
		"another direction":                 replace("from-lport", "up"),
		"another protocol":                  replace(": tcp,", ": arp,"),
		"no fields":                         head + "tcp",
		"no ports":                          head + "tcp," + eth + v4 + rest,
		"a field twice":                     replace("nw_src=10.16.0.2", "nw_src=10.16.0.2,nw_src=10.16.0.9"),
		"a field without a value":           replace(",nw_ecn=0", ",nw_ecn"),
		"an empty field":                    replace(",nw_ecn=0", ","),
		"no source":                         replace("nw_src=10.16.0.2,", ""),
		"an address that is none":           replace("10.16.0.2", "10.16.0.256"),
		"an address with a prefix length":   replace("10.16.0.2", "10.16.0.2/24"),
		"an address with a zone":            strings.Replace(head+"tcp6,"+eth+v6+rest+",tp_src=1,tp_dst=2", "fd00:16::2", "fe80::1%eth0", 1),
		"an address of the other family":    replace("nw_src=10.16.0.2", "nw_src=fd00::1"),
		"addresses of the other protocol":   head + "tcp6," + eth + v4 + rest + ",tp_src=1,tp_dst=2",
		"an IPv4 address in an IPv6 field":  head + "tcp6," + eth + "ipv6_src=10.16.0.2,ipv6_dst=10.16.0.3," + rest + ",tp_src=1,tp_dst=2",
		"a port above 65535":                replace("tp_dst=80", "tp_dst=65536"),
		"a negative port":                   replace("tp_dst=80", "tp_dst=-1"),
		"a hexadecimal port":                replace("tp_dst=80", "tp_dst=0x50"),
		"a port that is a name":             replace("tp_dst=80", "tp_dst=http"),
		"a type above 255":                  head + "icmp," + eth + v4 + rest + ",icmp_type=256,icmp_code=0",
		"no type":                           head + "icmp," + eth + v4 + rest,
		"a protocol above 255":              head + "ip," + eth + v4 + "nw_proto=256," + rest,
		"no number of the protocol":         head + "ip," + eth + v4 + rest,
		"control characters in a field":     replace("nw_tos=0", "nw_tos=\x1b[2J"),
		"a field with characters of others": replace("nw_tos=0", "nw_tos=é"),
		"a long line":                       replace("nw_tos=0", "nw_tos="+strings.Repeat("0", 1<<20)),
		"bytes that are no text":            "\xff\xfe" + tcp,
	} {
		if p, ok := acllog.Parse(line); ok {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// FuzzParse: whatever is read can be shown: its parts are short, and its addresses valid and of one family.
func FuzzParse(f *testing.F) {
	f.Add(tcp)
	f.Add(head + "ipv6," + eth + v6 + "nw_proto=112," + rest)
	f.Add(head + "icmp6," + eth + v6 + rest + ",icmp_type=128,icmp_code=0")
	f.Fuzz(func(t *testing.T, line string) {
		p, ok := acllog.Parse(line)
		if !ok {
			return
		}
		if len(p.ACL) > 63 || len(p.Protocol) > 4 || p.Protocol == "" || len(p.Verdict) > 6 || p.Time.IsZero() && p.Time.Year() > 9999 {
			t.Errorf("%q: %+v", line, p)
		}
		if !p.Source.IsValid() || !p.Destination.IsValid() || p.Source.Is4() != p.Destination.Is4() || p.Source.Zone()+p.Destination.Zone() != "" {
			t.Errorf("%q: %s to %s", line, p.Source, p.Destination)
		}
	})
}
