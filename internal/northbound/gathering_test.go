// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// histogram reads a metric of this process; tests compare two readings.
func histogram(t testing.TB, name string) *dto.Histogram {
	t.Helper()
	return series(t, name)[0].GetHistogram()
}

// series returns the series of a metric of this process.
func series(t testing.TB, name string) []*dto.Metric {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return nil
}

const metricGather = "kiln_northbound_gather_seconds"

func TestABurstSharesTransactions(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(node("n"), nodeRows("n"))
	names := podNames(480)
	burst := func(what string, rows func(string) []desired.Row) {
		sent := proxy.Transactions()
		e.spread(8, 10*time.Millisecond, names, rows)
		if got := proxy.Transactions() - sent; got > len(names)/10 {
			t.Errorf("%s %d pods that came over time took %d transactions, want a tenth", what, len(names), got)
		}
	}
	burst("creating", func(name string) []desired.Row { return podRows(name, "s", "n") })
	burst("deleting", func(string) []desired.Row { return nil })
}

// spread applies pods like a burst does: a few concurrently at each interval, whether or not earlier ones are done.
func (e *engine) spread(few int, every time.Duration, names []string, rows func(string) []desired.Row) {
	e.t.Helper()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var running sync.WaitGroup
	for these := range slices.Chunk(names, few) {
		for _, name := range these {
			running.Go(func() {
				if err := e.try(pod(name), rows(name)); err != nil {
					e.t.Error(err)
				}
			})
		}
		<-tick.C
	}
	running.Wait()
}

func TestOneAfterTheOtherNeverWaits(t *testing.T) {
	e := lead(t, nbtest.Start(t).Endpoint())
	e.apply(subnet("s"), subnetRows("s"))
	before := histogram(t, metricGather)
	names := podNames(100)
	for _, name := range names {
		e.apply(pod(name), podRows(name, "s"))
	}
	for _, name := range names {
		e.apply(pod(name), nil)
	}
	after := histogram(t, metricGather)
	if got := after.GetSampleCount() - before.GetSampleCount(); got != uint64(2*len(names)) {
		t.Errorf("%d transactions for %d requests in a row", got, 2*len(names))
	}
	if waited := after.GetSampleSum() - before.GetSampleSum(); waited != 0 {
		t.Errorf("requests in a row waited %f s in all for others to join them", waited)
	}
}
