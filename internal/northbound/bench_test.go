// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// burst applies pods with as many workers as a controller has.
func (e *engine) burst(workers int, names []string, rows func(i int, name string) []desired.Row) {
	type item struct {
		i    int
		name string
	}
	queue := make(chan item)
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for it := range queue {
				if err := e.try(pod(it.name), rows(it.i, it.name)); err != nil {
					e.t.Error(err)
				}
			}
		})
	}
	for i, name := range names {
		queue <- item{i, name}
	}
	close(queue)
	running.Wait()
}

// BenchmarkBurst creates pods concurrently on 10 nodes and reports transactions, time and this process's CPU time per pod.
func BenchmarkBurst(b *testing.B) {
	for _, pods := range []int{1000, 5000} {
		b.Run(fmt.Sprintf("%d pods", pods), func(b *testing.B) { benchmark(b, pods, 64) })
	}
}

// BenchmarkSerial creates pods one after another: the latency of one Apply on an idle engine.
func BenchmarkSerial(b *testing.B) {
	b.Run("1000 pods", func(b *testing.B) { benchmark(b, 1000, 1) })
}

func benchmark(b *testing.B, pods, workers int) {
	const nodes = 10
	for b.Loop() {
		b.StopTimer()
		server := nbtest.Start(b)
		e := lead(b, server.Endpoint())
		e.apply(subnet("s"), subnetRows("s"))
		for n := range nodes {
			e.apply(node(fmt.Sprint("n", n)), nodeRows(fmt.Sprint("n", n)))
		}
		names := podNames(pods)
		rows := func(i int, name string) []desired.Row { return podRows(name, "s", fmt.Sprint("n", i%nodes)) }
		sent, cpu := transactions(b), cpuTime(b)
		start := time.Now()
		b.StartTimer()
		e.burst(workers, names, rows)
		b.StopTimer()
		perPod := func(v float64, unit string) { b.ReportMetric(v/float64(pods), unit) }
		perPod(float64(time.Since(start).Microseconds()), "µs/pod")
		perPod(float64((cpuTime(b) - cpu).Microseconds()), "cpu-µs/pod")
		perPod(transactions(b)-sent, "transactions/pod")
		sent, cpu = transactions(b), cpuTime(b)
		e.burst(workers, names, rows)
		perPod(float64((cpuTime(b) - cpu).Microseconds()), "cpu-µs/pod-unchanged")
		if again := transactions(b) - sent; again != 0 {
			b.Errorf("%v transactions for pods that were there", again)
		}
		e.stop()
		server.Stop()
		b.StartTimer()
	}
}

// transactions is the number of transactions sent by this process.
func transactions(b *testing.B) float64 {
	b.Helper()
	return float64(histogram(b, "kiln_northbound_transaction_operations").GetSampleCount())
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
