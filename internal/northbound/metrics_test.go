// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"errors"
	"maps"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

func waitingOwners(t *testing.T) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "kiln_northbound_waiting_owners" {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("there is no metric kiln_northbound_waiting_owners")
	return 0
}

func TestMetricsOfOwners(t *testing.T) {
	e := lead(t, nbtest.Start(t).Endpoint())
	for _, name := range []string{"a", "b"} {
		if err := e.try(pod(name), podRows(name, "s", "n")); !errors.Is(err, northbound.ErrWaiting) {
			t.Fatalf("got %v, want ErrWaiting", err)
		}
	}
	if got := waitingOwners(t); got != 2 {
		t.Errorf("%v owners wait, want the 2 pods whose subnet is missing", got)
	}
	owners := histogram(t, "kiln_northbound_transaction_owners").GetSampleSum()
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(node("n"), nodeRows("n"))
	e.apply(pod("a"), podRows("a", "s", "n"))
	e.apply(pod("b"), podRows("b", "s", "n"))
	if got := waitingOwners(t); got != 0 {
		t.Errorf("%v owners wait, and nothing is missing", got)
	}
	if got := histogram(t, "kiln_northbound_transaction_owners").GetSampleSum() - owners; got != 4 {
		t.Errorf("transactions carried %v owners, want 4", got)
	}
}

// TestLatencyOfTransactions reads the series of committed transactions. Each of them takes at least a transaction's round trip.
func TestLatencyOfTransactions(t *testing.T) {
	e := lead(t, nbtest.Start(t).Endpoint())
	applied := func() (count uint64, milliseconds float64) {
		for _, m := range series(t, "ovs_client_request_latency_milliseconds") {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if maps.Equal(labels, map[string]string{"db": "ovn-nb", "method": "apply", "code": "0"}) {
				return m.GetHistogram().GetSampleCount(), m.GetHistogram().GetSampleSum()
			}
		}
		return 0, 0
	}
	count, sum := applied()
	began := time.Now()
	e.apply(subnet("s"), subnetRows("s"))
	took := float64(time.Since(began).Microseconds()) / 1000
	after, sumAfter := applied()
	if after != count+1 || sumAfter <= sum || sumAfter-sum > took {
		t.Errorf("%d transactions of %v ms, want one of at most %v ms", after-count, sumAfter-sum, took)
	}
}
