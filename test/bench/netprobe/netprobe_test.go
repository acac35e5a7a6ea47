// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	go func() { _ = serve(strings.TrimPrefix(address, "127.0.0.1:"), "1", false) }()
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
		if steady := name == "steady-full"; steady != (len(r.Seconds) > 0) {
			t.Errorf("%s: seconds %v", name, r.Seconds)
		}
		if r.Lost < 0 || r.Lost >= 1 {
			t.Errorf("%s: lost %v", name, r.Lost)
		}
	}
}

func TestSteadyOnLoopback(t *testing.T) {
	for _, segmentation := range []bool{false, true} {
		t.Run(fmt.Sprint("segmentation ", segmentation), func(t *testing.T) { testSteady(t, segmentation) })
	}
}

func testSteady(t *testing.T, segmentation bool) {
	s := &server{}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenPacket("udp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if segmentation {
		if err := segmented(packets, unix.UDP_GRO, 1); err != nil {
			t.Fatal(err)
		}
	}
	go s.count(packets)
	go func() { _ = s.accept(listener) }()
	r, err := steady(listener.Addr().String(), 4500*time.Millisecond, 1e6, segmentation)
	if err != nil || r.Rate < 0.7e6 || r.Rate > 1.3e6 || len(r.Seconds) < 4 {
		t.Errorf("%+v, %v", r, err)
	}
	if len(s.streams.byNumber) > 0 {
		t.Error("the server keeps a stream that was read")
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"serve"}, {"serve", "x"}, {"serve", "1", "x"}, {"stream", "127.0.0.1:1"}, {"other", "127.0.0.1:1", "1s"}, {"rr", "127.0.0.1:1", "soon"}, {"rr", "127.0.0.1:1", "1s"}, {"features", "none"}, {"steady", "127.0.0.1:1", "1s"}, {"steady", "127.0.0.1:1", "1s", "NaN"}, {"rr", "127.0.0.1:1", "1s", "5"}} {
		if run(args) == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
