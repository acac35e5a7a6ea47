// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package requesttest has values of the annotations by which users request the network of a pod, for tests of whatever reads them.
package requesttest

import "strings"

// Values are valid and invalid values of one annotation.
type Values struct{ Valid, Invalid []string }

// rates are invalid rates and bursts.
var rates = []string{"-1", "+1", "1e3", "NaN", "Inf", "0x10", "10M", ".5", "5.", "1.0000001", "1000001", "1000000.000001", "9999999999999", "1,5"}

// OfPods returns values of each request of a pod, by the annotation's name without its prefix.
func OfPods() map[string]Values {
	return map[string]Values{
		"ip_address": {
			[]string{"10.16.0.9,fd00::9", " 10.16.0.9 , fd00::9", "10.16.0.9", "::ffff:10.16.0.9", "fe80::1%eth0", "::ffff:0a10:0009,fd00::9"},
			[]string{"10.16.0.9,", "10.16.0.9,10.16.0.8", "0.0.0.0/0", "a", "10.0.0.300", "10.16.0.9,fd00::1,fd00::2", "fd00::1,fd00::2", ",", "010.16.0.9"},
		},
		"mac_address": {
			[]string{"02:00:00:00:00:01", "02-00-00-00-00-01", "0200.0000.1601", "AE:00:00:00:16:0F"},
			[]string{"02:00", "00:00:00:00:00:00", "02:00:00:00:00:00:00:01", "01:00:5e:00:00:01", "02:00:00-00-00:01", "02:00:00:00:00:0g", "0000.0000.0000"},
		},
		"logical_switch": {[]string{"web", "a.b-c"}, []string{"a/b", "../a", "a,b", `"`, "Web", "-", "a..b", strings.Repeat("x", 254)}},
		"ip_family":      {[]string{"ipv4", "IPv6", "dual"}, []string{"6", "v4", "\u0130pv4"}},
		"ip_pool": {
			[]string{"a,b", "10.0.0.300", "10.16.0.2,10.16.0.3", "10.16.0.2,fd00::2;10.16.0.3,fd00::3", "10.16.0.2, 10.16.0.3", "10.16.0.2 ; 10.16.0.3", "a,,b", ",", "::ffff:10.16.0.2;"},
			[]string{"a,10.16.0.2", "10.16.0.2..10.16.0.9", "a;b", "A", `"`, "a, b", "10.16.0.0/24", "10.16.0.2,10.16.0.3;10.16.0.4", "10.16.0.2;a"},
		},
		"vip": {[]string{"front"}, []string{"a,b", "A", "a b", "a/b"}},
		"routes": {
			[]string{`[{"dst":"10.0.0.0/8","gw":"10.16.0.2"}]`, "[\n\t{\"gw\":\"fd00::1\"}\n]", "[]", "null"},
			[]string{
				"10.0.0.0/8", `[{"dst":"10.0.0.0/33"}]`, `[{"dst":"10.0.0.0/8","gw":"fd00::1"}]`, "[{}]", "[null]", "{", `[{"dst":"0.0.0.0/0","gw":"\u0000"}]`,
				"a\nb", `{"dst":"10.0.0.0/8"}`,
			},
		},
		"bgp":             {[]string{"true", "cluster", "local", "false"}, []string{"yes", "Local", "true,local"}},
		"default_route":   {[]string{"true", "false"}, []string{"no", "True"}},
		"north_gateway":   {[]string{"10.16.0.2,fd00::2"}, []string{"10.16.0.2,10.16.0.3", "gateway", "10.16.0.9;fd00::1"}},
		"port_vips":       {[]string{"10.16.0.7, 10.16.0.8", "10.16.0.7,10.16.0.7"}, []string{"10.16.0.7,", "10.16.0.0/24", "10.16.0.9 10.16.0.10"}},
		"port_security":   {[]string{"true", "false"}, []string{"yes", "True"}},
		"mirror":          {[]string{"true", "false"}, []string{"TRUE", "both"}},
		"layer2_forward":  {[]string{"true", "false"}, []string{"1"}},
		"eip":             {[]string{"192.0.2.9", "192.0.2.9, 2001:db8::9"}, []string{"192.0.2.9,192.0.2.10", "web", "192.0.2.0/24", "192.0.2.9,"}},
		"snat":            {[]string{"2001:db8::9"}, []string{"192.0.2.9 192.0.2.10", "any"}},
		"aaps":            {[]string{"a, b,,a", "a"}, []string{"a,B", `"`, "a_b"}},
		"security_groups": {[]string{"b,a,,a", "a"}, []string{"a,b c", "-1", "A"}},
		"ingress_rate":    {[]string{"10", " 2.5 ", "0", "0.000001", "1000000"}, rates},
		"egress_rate":     {[]string{"10", "2.5"}, rates},
		"ingress_burst":   {[]string{"0", "5"}, rates},
		"egress_burst":    {[]string{"0.5", "1000000.0"}, rates},
		"latency":         {[]string{"20", "0.5", "10000"}, []string{"20ms", "10001", "-1", "1.0001"}},
		"jitter":          {[]string{"1", "0"}, []string{"1s", "10000.001", "NaN"}},
		"limit":           {[]string{"100", "1000"}, []string{"1001", "1.5", "-1", "many"}},
		"loss":            {[]string{"5", "0.0001", "100"}, []string{"5%", "100.0001", "-1", "0.00001"}},
		"dhcp-v4-options": {[]string{"lease_time=600,router=10.16.0.1"}, nil}, // tests of internal/validation have more values
		"dhcp-v6-options": {[]string{"dns_server=fd00::a"}, nil},
		"virtualmachine":  {[]string{"vm"}, nil},
	}
}

// TooMuch returns texts that no request may have, each longer than length or with control characters.
func TooMuch(length int) []string {
	return []string{"a\x00b", "a\x1b[2Jb", "a\u0085\u009bb", strings.Repeat("x", length+1), strings.Repeat("10.0.0.1,", length/9+1) + "10.0.0.1"}
}
