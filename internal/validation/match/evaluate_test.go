// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package match

import (
	"math/big"
	"net/netip"
	"testing"
)

// sample is a TCP packet over IPv4 from 10.16.0.5 to 10.17.0.9:80, at port web, with an unknown source port.
type sample struct{}

func (sample) Field(name string) (*big.Int, Truth) {
	switch name {
	case "ip", "ip4", "tcp":
		return big.NewInt(1), True
	case "ip4.src":
		return new(big.Int).SetBytes(netip.MustParseAddr("10.16.0.5").AsSlice()), True
	case "ip4.dst":
		return new(big.Int).SetBytes(netip.MustParseAddr("10.17.0.9").AsSlice()), True
	case "tcp.dst":
		return big.NewInt(80), True
	case "ip.is_frag", "flags.loopback":
		return big.NewInt(0), True
	case "tcp.src", "eth.src":
		return nil, Unknown
	}
	return nil, False
}

func (sample) Port(field string) (string, Truth) {
	if field == "outport" {
		return "web", True
	}
	return "", Unknown
}

func (sample) InGroup(port, group string) Truth {
	if group == "some" {
		return Unknown
	}
	return truthOf(port == "web" && group == "webs")
}

func (sample) InSet(value *big.Int, field, set string) Truth {
	if set == "some" {
		return Unknown
	}
	return truthOf(set == "servers" && field == "ip4.dst" && value.Sign() > 0)
}

func (sample) Resident(port string) Truth { return truthOf(port == "here") }

func TestEvaluate(t *testing.T) {
	for text, want := range map[string]Truth{
		"1": True, "0": False, "!(1)": False, "!0": True,
		"ip4":                                           True,
		"ip6":                                           False,
		"ip4.src == 10.16.0.0/16":                       True,
		"ip4.src == 10.16.0.6":                          False,
		"ip4.src != 10.16.0.6":                          True,
		"10.17.0.9 == ip4.dst":                          True,
		"ip4.dst == {10.0.0.1, 10.17.0.0/24}":           True,
		"ip4.dst != {10.0.0.1, 10.17.0.0/24}":           False,
		"ip6.src != fd00::1":                            False, // the packet has no ip6.src
		"!(ip6.src == fd00::1)":                         False,
		"!(ip4.src == 10.16.0.6)":                       True,
		"!(ip4.src == 10.16.0.5 && tcp.dst == 81)":      True,
		"!(ip4.src == 10.16.0.5 || tcp.dst == 81)":      False,
		"80 <= tcp.dst <= 90":                           True,
		"!(80 <= tcp.dst <= 90)":                        False,
		"81 <= tcp.dst <= 90":                           False,
		"90 >= tcp.dst >= 80":                           True,
		"tcp.dst > 80":                                  False,
		"!(tcp.dst > 80)":                               True,
		"tcp.dst == {80, 443}":                          True,
		"udp.dst == 80":                                 False,
		"tcp.dst[4..7] == 5":                            True,
		"!ip.is_frag":                                   True,
		"tcp.src == 1024":                               Unknown,
		"tcp.src == 1024 && ip6":                        False,
		"tcp.src == 1024 || ip4":                        True,
		"tcp.src == 1024 && ip4":                        Unknown,
		`outport == "web"`:                              True,
		`outport == {"a", "b"}`:                         False,
		"outport == @webs":                              True,
		"outport == @others":                            False,
		"outport == @some":                              Unknown,
		`inport == "web"`:                               Unknown,
		"ip4.dst == $servers":                           True,
		"ip4.dst != $servers":                           False,
		"ip4.src == $servers":                           False,
		"ip4.src == $some":                              Unknown,
		"ip4.src == {$some, 10.16.0.5}":                 True,
		`is_chassis_resident("here")`:                   True,
		`!is_chassis_resident("here")`:                  False,
		`ip4 && is_chassis_resident("there")`:           False,
		"flags.loopback":                                False,
		"outport == @webs && ip && tcp.dst == 80":       True,
		"ip4 && (ip4.src == 10.16.0.5 || tcp.dst > 90)": True,
		"eth.src == 02:00:00:00:00:01 || tcp.dst<9":     Unknown,
	} {
		if got, err := Evaluate(text, sample{}); err != nil || got != want {
			t.Errorf("%s: got %d (%v), want %d", text, got, err, want)
		}
	}
	if _, err := Evaluate("ip4.src = 1", sample{}); err == nil {
		t.Error("a match that is wrong has a value")
	}
	if _, err := Parse("flags.loopback"); err == nil {
		t.Error("users may name OVN's own flags")
	}
}
