// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"strconv"
	"sync/atomic"
	"testing"
)

// cidrs of the benchmarks: the cost must not depend on their size.
var cidrs = []struct{ name, cidrs, gateways string }{
	{"v4-16", "10.16.0.0/16", "10.16.0.1"},
	{"v4-8", "10.0.0.0/8", "10.0.0.1"},
	{"v6-64", "fd00::/64", "fd00::1"},
	{"dual", "10.0.0.0/8,fd00::/64", "10.0.0.1,fd00::1"},
}

// BenchmarkAllocate allocates one pod's addresses, with 10,000 to 20,000 others held.
func BenchmarkAllocate(b *testing.B) {
	for _, bb := range cidrs {
		b.Run(bb.name, func(b *testing.B) {
			a := filled(b, benchSpec(b, bb.cidrs, bb.gateways), 10_000)
			inRounds(b, names(20_000)[10_000:], nil, func(port string) { allocatePort(b, a, port) }, a.Release)
		})
	}
}

// BenchmarkRelease releases one pod's addresses, with 10,000 to 20,000 held.
func BenchmarkRelease(b *testing.B) {
	for _, bb := range cidrs {
		b.Run(bb.name, func(b *testing.B) {
			a := filled(b, benchSpec(b, bb.cidrs, bb.gateways), 10_000)
			inRounds(b, names(20_000)[10_000:], func(port string) { allocatePort(b, a, port) }, a.Release, nil)
		})
	}
}

// inRounds measures work on one port after another. Before and after each round over all ports it runs prepare and undo,
// unmeasured.
func inRounds(b *testing.B, ports []string, prepare, work, undo func(port string)) {
	b.ReportAllocs()
	each := func(ports []string, f func(string)) {
		if f == nil {
			return
		}
		b.StopTimer()
		for _, port := range ports {
			f(port)
		}
		b.StartTimer()
	}
	for left := b.N; left > 0; left -= len(ports) {
		round := ports[:min(left, len(ports))]
		each(round, prepare)
		for _, port := range round {
			work(port)
		}
		each(round, undo)
	}
}

// BenchmarkReleaseAllocate releases and allocates a pod's address, with others held: in a subnet where every second address is
// free, and in others with fresh addresses left. With scattered it uses another pod each time, so that its memory is in no CPU
// cache.
func BenchmarkReleaseAllocate(b *testing.B) {
	fragmented := func(b *testing.B) (*Allocator, []string) {
		ports := names(65_533)
		a := filled(b, spec(b, "10.16.0.0/16", "10.16.0.1"), len(ports))
		var held []string
		for i, port := range ports {
			if i%2 == 0 {
				a.Release(port)
			} else {
				held = append(held, port)
			}
		}
		return a, held
	}
	b.Run("fragmented-16", func(b *testing.B) {
		a, held := fragmented(b)
		releaseAllocate(b, a, held[:1])
	})
	b.Run("fragmented-16-scattered", func(b *testing.B) {
		a, held := fragmented(b)
		releaseAllocate(b, a, held)
	})
	for _, bb := range cidrs {
		b.Run(bb.name, func(b *testing.B) {
			releaseAllocate(b, filled(b, benchSpec(b, bb.cidrs, bb.gateways), 50_000), names(1))
		})
	}
}

func releaseAllocate(b *testing.B, a *Allocator, held []string) {
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		port := held[i*7919%len(held)]
		a.Release(port)
		allocatePort(b, a, port)
		i++
	}
}

// BenchmarkParallel allocates and releases addresses of one subnet in eight goroutines.
func BenchmarkParallel(b *testing.B) {
	a := filled(b, benchSpec(b, "10.0.0.0/8,fd00::/64", "10.0.0.1,fd00::1"), 50_000)
	var workers atomic.Int64
	b.SetParallelism(8)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		port := "worker-" + strconv.FormatInt(workers.Add(1), 10) + ".ns"
		for pb.Next() {
			allocatePort(b, a, port)
			a.Release(port)
		}
	})
}

// BenchmarkExhausted allocates in a full subnet.
func BenchmarkExhausted(b *testing.B) {
	a := filled(b, spec(b, "10.16.0.0/16", "10.16.0.1"), 65_533)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.Allocate("one-more.ns", Request{Subnet: "s"}); err == nil {
			b.Fatal("a full subnet gave an address")
		}
	}
}

// BenchmarkRestore restores 100,000 pods; one operation is one pod.
func BenchmarkRestore(b *testing.B) {
	ports := names(100_000)
	s := spec(b, "10.0.0.0/8,fd00::/64", "10.0.0.1,fd00::1")
	from := filled(b, s, len(ports))
	allocations := make([]Allocation, len(ports))
	for i, port := range ports {
		allocations[i], _ = from.Lookup(port)
	}
	b.ReportAllocs()
	var a *Allocator
	i := 0
	for b.Loop() {
		if i%len(ports) == 0 {
			a = with(b, s)
		}
		if err := a.Restore(ports[i%len(ports)], allocations[i%len(ports)]); err != nil {
			b.Fatal(err)
		}
		i++
	}
}

// BenchmarkUsage computes the usage of a subnet with 50,000 held addresses.
func BenchmarkUsage(b *testing.B) {
	a := filled(b, spec(b, "10.0.0.0/8", "10.0.0.1"), 50_000)
	b.ReportAllocs()
	for b.Loop() {
		a.Usage("s")
	}
}

// benchSpec excludes addresses, as every real subnet does.
func benchSpec(b *testing.B, cidrs, gateways string) Subnet {
	b.Helper()
	return spec(b, cidrs, gateways, "10.0.0.9..10.0.0.20", "fd00::9")
}

func allocatePort(t testing.TB, a *Allocator, port string) {
	if _, err := a.Allocate(port, Request{Subnet: "s"}); err != nil {
		t.Fatal(err)
	}
}

func filled(t testing.TB, s Subnet, n int) *Allocator {
	t.Helper()
	a := with(t, s)
	for _, port := range names(n) {
		allocatePort(t, a, port)
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
