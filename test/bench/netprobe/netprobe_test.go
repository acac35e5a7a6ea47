// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"strings"
	"testing"
	"time"
)

func TestEachMeasurementOnLoopback(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = serve(strings.TrimPrefix(address, "127.0.0.1:"), "1") }()
	for tries := 0; ; tries++ {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			break
		}
		if tries == 500 {
			t.Fatalf("no server: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	for name, measure := range measurements {
		r, err := measure(address, 500*time.Millisecond)
		if err != nil || r.Rate <= 0 {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		if exchange := name == "rr" || name == "crr"; exchange != (r.Median > 0 && r.P99 >= r.Median) {
			t.Errorf("%s: times %+v", name, r)
		}
		if r.Lost < 0 || r.Lost >= 1 {
			t.Errorf("%s: lost %v", name, r.Lost)
		}
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"serve"}, {"serve", "x"}, {"serve", "1", "x"}, {"stream", "127.0.0.1:1"}, {"other", "127.0.0.1:1", "1s"}, {"rr", "127.0.0.1:1", "soon"}, {"rr", "127.0.0.1:1", "1s"}, {"features", "none"}} {
		if run(args) == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
