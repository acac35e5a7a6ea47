// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services_test

import (
	"fmt"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/agent/services"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// metric returns the value of a metric of this process; for a histogram, the number of observations.
func (w *world) metric(name string) float64 {
	w.Helper()
	families, err := metrics.Registry.Gather()
	must.Succeed(w, err)
	for _, family := range families {
		if family.GetName() == name {
			m := family.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount()) // all but one are zero
		}
	}
	w.Fatalf("there is no metric %s", name)
	return 0
}

func TestMetricsOfServices(t *testing.T) {
	w := emptyWorld(t)
	a := w.pod("a", 2)
	earlier := w.metric("kiln_services_sync_seconds") // the metrics have the values of earlier tests
	w.start()
	w.eventually(func() string {
		if w.metric("kiln_services_sync_seconds") == earlier {
			return "the proxy has not written its table"
		}
		return ""
	})
	served, elements := w.metric("kiln_services_served"), w.metric("kiln_services_elements_written_total")
	syncs, failures := w.metric("kiln_services_sync_seconds"), w.metric("kiln_services_sync_errors_total")
	s := w.service("measured", nil)
	w.serves("measured", here(a))
	w.expect(nil, "tcp", clusterIP(s), nodeIPs[0].Addr(), "a")
	w.eventually(func() string {
		if got := w.metric("kiln_services_served"); got != served+1 {
			return fmt.Sprintf("%v Services are served, want %v", got, served+1)
		}
		return ""
	})
	if got := w.metric("kiln_services_elements_written_total"); got <= elements {
		t.Errorf("%v elements were written, before it were %v", got, elements)
	}
	if got := w.metric("kiln_services_sync_seconds"); got <= syncs {
		t.Errorf("%v writes were measured, before it were %v", got, syncs)
	}
	if got := w.metric("kiln_services_sync_errors_total"); got != failures {
		t.Errorf("%v writes failed, want %v", got, failures)
	}
	w.delete(s)
	w.eventually(func() string {
		if got := w.metric("kiln_services_served"); got != served {
			return fmt.Sprintf("%v Services are served, want %v", got, served)
		}
		return ""
	})
}

// TestFailedWritesAreCounted adds a set with the name of one of the proxy's maps. nft refuses the map until the table is deleted.
func TestFailedWritesAreCounted(t *testing.T) {
	w := emptyWorld(t)
	s := w.service("refused", nil)
	w.serves("refused", here(w.pod("a", 2)))
	table := "table inet " + services.Table
	nodetest.NFT(t, "add "+table+"; delete "+table+"; add "+table+"; add set inet "+services.Table+" fronts4 { type ipv4_addr; }")
	const name = "kiln_services_sync_errors_total"
	before := w.metric(name)
	w.start()
	w.eventually(func() string {
		if got := w.metric(name); got < before+2 { // at least one retry
			return fmt.Sprintf("%s is %v, before the failures it was %v", name, got, before)
		}
		return ""
	})
	nodetest.NFT(t, "delete "+table)
	w.expect(nil, "tcp", clusterIP(s), nodeIPs[0].Addr(), "a")
	after := w.metric(name)
	other := w.service("after", nil)
	w.serves("after", here(w.pod("b", 3)))
	w.expect(nil, "tcp", clusterIP(other), nodeIPs[0].Addr(), "b")
	if got := w.metric(name); got != after {
		t.Errorf("%s is %v after writes that succeeded, before them it was %v", name, got, after)
	}
}
