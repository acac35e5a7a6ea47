// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"net/netip"
	"testing"
)

func TestPassive(t *testing.T) {
	for address, want := range map[string]string{
		"::":         "pssl:6641:[::]",
		"0.0.0.0":    "pssl:6641:0.0.0.0",
		"2001:db8::": "pssl:6641:[2001:db8::]",
	} {
		if got := passive(6641, netip.MustParseAddr(address)); got != want {
			t.Errorf("passive(6641, %s) = %s, want %s", address, got, want)
		}
	}
}
