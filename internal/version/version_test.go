// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package version

import (
	"context"
	"errors"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

func TestVersionOfADaemon(t *testing.T) {
	for answer, want := range map[string]string{
		"ovn-northd 25.03.0\nOpen vSwitch Library 3.5.0": "25.03.0",
		"ovs-vswitchd (Open vSwitch) 3.5.0":              "3.5.0",
		"ovsdb-server (Open vSwitch) 3.5.1\n":            "3.5.1",
		"":                                               "",
		"ovn-controller":                                 "",
	} {
		if got := OfDaemon(answer); got != want {
			t.Errorf("%q: %q; want %q", answer, got, want)
		}
	}
}

func TestGetReturnsServedVersions(t *testing.T) {
	want := Programs{Kiln: "v1", OVN: "25.03.0"}
	server := httptest.NewServer(Handler(func(context.Context) (Programs, error) { return want, nil }))
	defer server.Close()
	address := netip.MustParseAddrPort(strings.TrimPrefix(server.URL, "http://"))
	if got, err := Get(t.Context(), address); err != nil || got != want {
		t.Errorf("heard %+v, %v", got, err)
	}
	starting := httptest.NewServer(Handler(func(context.Context) (Programs, error) { return want, errors.New("not running yet") }))
	defer starting.Close()
	address = netip.MustParseAddrPort(strings.TrimPrefix(starting.URL, "http://"))
	if got, err := Get(t.Context(), address); err == nil {
		t.Errorf("heard %+v of a process that does not know yet", got)
	}
}
