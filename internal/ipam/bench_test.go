// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"strconv"
	"testing"
)

// cidrs of the benchmarks: cost must not depend on their size.
var cidrs = []struct{ name, cidrs, gateways string }{
	{"v4-16", "10.16.0.0/16", "10.16.0.1"},
	{"v4-8", "10.0.0.0/8", "10.0.0.1"},
	{"v6-64", "fd00::/64", "fd00::1"},
	{"dual", "10.0.0.0/8,fd00::/64", "10.0.0.1,fd00::1"},
}

// BenchmarkAllocateRelease is one pod's addresses and their return, with 50,000 others held.
func BenchmarkAllocateRelease(b *testing.B) {
	for _, bb := range cidrs {
		b.Run(bb.name, func(b *testing.B) {
			a := filled(b, spec(b, bb.cidrs, bb.gateways, "10.0.0.9..10.0.0.20", "fd00::9"), 50_000)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := a.Allocate("pod.ns", Request{Subnet: "s"}); err != nil {
					b.Fatal(err)
				}
				a.Release("pod.ns")
			}
		})
	}
}

// BenchmarkFill is a start with 10,000 pods; one operation is one pod.
func BenchmarkFill(b *testing.B) {
	ports := names(10_000)
	s := spec(b, "10.0.0.0/8,fd00::/64", "10.0.0.1,fd00::1")
	b.ReportAllocs()
	var a *Allocator
	i := 0
	for b.Loop() {
		if i%len(ports) == 0 {
			a = with(b, s)
		}
		if _, err := a.Allocate(ports[i%len(ports)], Request{Subnet: "s"}); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

// BenchmarkUsage is a status of a subnet with 50,000 held addresses.
func BenchmarkUsage(b *testing.B) {
	a := filled(b, spec(b, "10.0.0.0/8", "10.0.0.1"), 50_000)
	b.ReportAllocs()
	for b.Loop() {
		a.Usage("s")
	}
}

func filled(b *testing.B, s Subnet, n int) *Allocator {
	b.Helper()
	a := with(b, s)
	for _, port := range names(n) {
		if _, err := a.Allocate(port, Request{Subnet: "s"}); err != nil {
			b.Fatal(err)
		}
	}
	return a
}

func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "pod-" + strconv.Itoa(i) + ".ns"
	}
	return out
}
