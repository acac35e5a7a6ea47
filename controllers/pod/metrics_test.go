// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"testing"
)

// The metrics measure a pod that gets its network once: each leg of docs/operations/metrics.md, and the whole path.
func TestMetricsOfAPod(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	left, _ := w.Metric("kiln_pod_records_held") // from processes of other tests, which stopped with unwritten IP objects
	w.start()
	w.pod("default", "first")
	count := func(leg string) float64 {
		n, _ := w.Metric("kiln_pod_leg_seconds", "leg", leg)
		return n
	}
	legs := []string{"seen", "address", "committed", "annotated"}
	w.Eventually(func() string { // the measurement of the first pod may not have ended yet
		if count("annotated") == 0 {
			return "no pod is measured"
		}
		return ""
	})
	before := map[string]float64{}
	for _, leg := range legs {
		before[leg] = count(leg)
	}
	whole, _ := w.Metric("kiln_pod_network_seconds")
	p := w.pod("default", "second")
	w.Measures(whole+1, "kiln_pod_network_seconds")
	for _, leg := range legs {
		w.Measures(before[leg]+1, "kiln_pod_leg_seconds", "leg", leg)
	}
	w.ipObject(p)
	w.Measures(left, "kiln_pod_records_held")
}
