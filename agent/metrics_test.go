// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"slices"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// series returns the series of one of the agent's metrics with exactly these labels, given as name, value and so on; nil if there is
// none.
func (n *node) series(name string, labels ...string) *dto.Metric {
	n.Helper()
	for _, m := range n.metric(name).GetMetric() {
		var have []string
		for _, l := range m.GetLabel() { // sorted by name
			have = append(have, l.GetName(), l.GetValue())
		}
		if slices.Equal(have, labels) {
			return m
		}
	}
	return nil
}

// TestMetricsOfCNI makes one ADD wait for its address and then for its flows, and reads the CNI server's metrics that docs/operations/metrics.md
// lists.
func TestMetricsOfCNI(t *testing.T) {
	const pause = 300 * time.Millisecond
	n := serving(t)
	before := n.series("cni_ovs_transactions_total").GetCounter().GetValue()
	began, pod := time.Now(), n.createPod("measured")
	c := n.sandbox(pod, newID())
	n.idle.Store(true)
	done := make(chan error, 1)
	go func() { _, err := c.add(); done <- err }()
	time.Sleep(pause)
	n.annotate(pod, 400)
	n.eventually("the port is in the database", func() bool { return len(n.interfaces()) == 1 })
	time.Sleep(pause)
	name, _ := c.port()
	n.idle.Store(false)
	n.touch(name)
	must(t, <-done)
	c.mustDel()
	took := time.Since(began).Seconds()

	legs := map[string]float64{}
	for _, op := range []struct {
		method, code string
		legs         []string
	}{
		{"add", "200", []string{"turn", "address", "link", "port", "configure", "ofport", "flows"}},
		{"del", "204", []string{"turn", "link", "port"}},
	} {
		method := op.method
		all := n.series("cni_op_latency_seconds", "method", method, "node_name", nodeName, "status_code", op.code).GetHistogram()
		if all.GetSampleCount() != 1 || all.GetSampleSum() <= 0 || all.GetSampleSum() > took {
			t.Errorf("cni_op_latency_seconds of %s is %v, want one of less than %v s", method, all, took)
		}
		for _, leg := range op.legs {
			got := n.series("cni_op_leg_seconds", "leg", leg, "method", method, "node_name", nodeName).GetHistogram()
			if got.GetSampleCount() == 0 {
				t.Errorf("leg %s of %s was not measured", leg, method)
			}
			legs[method+" "+leg] = got.GetSampleSum()
		}
	}
	if legs["add flows"] < pause.Seconds()/2 {
		t.Errorf("the flows took %v s, and the test held them back for %s", legs["add flows"], pause)
	}
	for name, least := range map[string]float64{
		"cni_wait_address_seconds_total":      legs["add address"],
		"cni_wait_connectivity_seconds_total": legs["add ofport"] + legs["add flows"],
	} {
		if got := n.series(name, "node_name", nodeName).GetCounter().GetValue(); got < least || got <= 0 || got > took {
			t.Errorf("%s is %v, want at least its legs' %v and at most %v", name, got, least, took)
		}
	}
	if got := n.series("cni_ovs_transactions_total").GetCounter().GetValue() - before; got < 2 {
		t.Errorf("%v transactions for an ADD and a DEL", got)
	}
}
