// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pinger

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
)

func TestPortsAreParsed(t *testing.T) {
	for text, want := range map[string]Port{
		"tcp-10.16.0.5-80": {"tcp", netip.MustParseAddrPort("10.16.0.5:80")},
		"udp-fd00::5-53":   {"udp", netip.MustParseAddrPort("[fd00::5]:53")},
	} {
		if got, err := ParsePort(text); err != nil || got != want {
			t.Errorf("%s is %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "tcp", "tcp-10.16.0.5", "sctp-10.16.0.5-80", "tcp-host-80", "tcp-10.16.0.5-0", "tcp-10.16.0.5-65536", "tcp-10.16.0.5-80-1"} {
		if got, err := ParsePort(text); err == nil {
			t.Errorf("%q is %v, want an error", text, got)
		}
	}
}

func TestPortsAreChecked(t *testing.T) {
	open, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	echo, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		buffer := make([]byte, 1)
		for {
			_, from, err := echo.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = echo.WriteTo([]byte("x"), from)
		}
	}()
	port := func(protocol string, a net.Addr) Port { return Port{protocol, netip.MustParseAddrPort(a.String())} }
	out := &bytes.Buffer{}
	if err := CheckPortsOnce(t.Context(), []Port{port("tcp", open.Addr()), port("udp", echo.LocalAddr())}, out); err != nil {
		t.Errorf("open ports failed: %v\n%s", err, out)
	}
	for _, protocol := range []string{"tcp", "udp"} {
		out.Reset()
		err = CheckPortsOnce(t.Context(), []Port{port(protocol, closed.Addr()), port("tcp", open.Addr())}, out)
		if failed := (FailedError{}); !errors.As(err, &failed) || failed.Failed != 1 || !strings.Contains(out.String(), "connection refused") {
			t.Errorf("a closed port of %s: %v\n%s", protocol, err, out)
		}
	}
}
