// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
	"fmt"
	"time"

	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Metric returns the value of the first series of a metric of this process with these labels, given as name, value, name, value and so
// on. For a histogram it returns the number of observations. It returns false if no such series exists.
func (w *World) Metric(name string, labels ...string) (float64, bool) {
	w.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		w.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			if !hasLabels(m, labels) {
				continue
			}
			switch family.GetType() {
			case dto.MetricType_COUNTER:
				return m.GetCounter().GetValue(), true
			case dto.MetricType_HISTOGRAM:
				return float64(m.GetHistogram().GetSampleCount()), true
			default:
				return m.GetGauge().GetValue(), true
			}
		}
	}
	return 0, false
}

func hasLabels(m *dto.Metric, labels []string) bool {
	has := map[string]string{}
	for _, l := range m.GetLabel() {
		has[l.GetName()] = l.GetValue()
	}
	for i := 0; i+1 < len(labels); i += 2 {
		if value, there := has[labels[i]]; !there || value != labels[i+1] {
			return false
		}
	}
	return true
}

// Measures waits until a series of Metric exists and has the value.
func (w *World) Measures(want float64, name string, labels ...string) {
	w.Helper()
	w.Eventually(func() string {
		if got, there := w.Metric(name, labels...); !there || got != want {
			return fmt.Sprintf("metric %s%v is %v (there: %v), want %v", name, labels, got, there, want)
		}
		return ""
	})
}

// Reconciles returns the number of passes of a controller in this process.
func (w *World) Reconciles(controller string) int {
	w.Helper()
	return w.passes("controller", controller)
}

// passes returns the number of passes of the controllers with these labels.
func (w *World) passes(labels ...string) int {
	w.Helper()
	families, err := metrics.Registry.Gather()
	w.Must(err)
	total := 0.0
	for _, family := range families {
		if family.GetName() != "controller_runtime_reconcile_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			if hasLabels(m, labels) {
				total += m.GetCounter().GetValue()
			}
		}
	}
	return int(total)
}

// aMoment exceeds the delays of a controller between passes, except delays of whole seconds.
const aMoment = 300 * time.Millisecond

// Rests waits until a controller has been idle for aMoment. A pass that is still due would hide a missing event.
func (w *World) Rests(controller string) {
	w.Helper()
	count, since := -1, time.Now()
	w.Eventually(func() string {
		if now := w.Reconciles(controller); now != count {
			count, since = now, time.Now()
		}
		if time.Since(since) < aMoment {
			return "controller " + controller + " is at work"
		}
		return ""
	})
}
