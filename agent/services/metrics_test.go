// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services_test

import (
	"fmt"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// metric is the value of a metric of this process; of a histogram the number of observations.
func (w *world) metric(name string) float64 {
	w.Helper()
	families, err := metrics.Registry.Gather()
	must(w, err)
	for _, family := range families {
		if family.GetName() == name {
			m := family.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount()) // all but one are zero
		}
	}
	w.Fatalf("there is no metric %s", name)
	return 0
}

func TestWhatIsMeasuredOfServices(t *testing.T) {
	w := newWorld(t)
	a := w.pod("a", 2)
	w.eventually(func() string { // the first pass serves what the API server has itself
		if n := w.metric("kiln_services_sync_seconds"); n == 0 {
			return "nothing was written"
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
