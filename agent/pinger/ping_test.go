// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pinger

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"
)

func TestPingsOfBothFamilies(t *testing.T) {
	for _, a := range addrs("127.0.0.1", "::1", "192.0.2.2", "2001:db8::2") {
		replies, err := requests.ping(t.Context(), a)
		if err != nil || len(replies) != requests.count {
			t.Errorf("%s: %v, %v", a, replies, err)
		}
		for _, r := range replies {
			if r <= 0 || r > requests.timeout {
				t.Errorf("%s: a reply after %s", a, r)
			}
		}
	}
}

func TestOnePing(t *testing.T) {
	for _, a := range addrs("127.0.0.1", "::1") {
		if err := Ping(t.Context(), a); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
	if err := Ping(t.Context(), netip.MustParseAddr("192.0.2.99")); err == nil {
		t.Error("an unused address: no error")
	}
}

func TestLostPackets(t *testing.T) {
	quick := echo{count: 2, interval: time.Millisecond, timeout: 50 * time.Millisecond}
	if replies, err := quick.ping(t.Context(), netip.MustParseAddr("192.0.2.99")); len(replies) != 0 {
		t.Errorf("an unused address: %v, %v", replies, err)
	}
	if _, err := quick.ping(t.Context(), netip.MustParseAddr("198.51.100.1")); err == nil {
		t.Error("an address without a route: no error")
	}
	slow := echo{count: 2, interval: time.Hour, timeout: time.Hour}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	began := time.Now()
	if replies, _ := slow.ping(ctx, netip.MustParseAddr("192.0.2.2")); len(replies) > 1 || time.Since(began) > time.Minute {
		t.Errorf("a ping that is interrupted: %v after %s", replies, time.Since(began))
	}
}

func TestPingNeedsTheKernelParameter(t *testing.T) {
	if err := os.WriteFile(pingGroups, []byte("1 0"), 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.WriteFile(pingGroups, []byte("0 2147483647"), 0) }()
	if _, err := requests.ping(t.Context(), netip.MustParseAddr("127.0.0.1")); err == nil {
		t.Error("no error without the right to open the socket")
	}
}
