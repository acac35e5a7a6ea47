// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver_test

import (
	"slices"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// series returns the series of one of the agent's metrics with exactly these labels, given as name, value and so on; nil if there is
// none.
func series(n *agenttest.Node, name string, labels ...string) *dto.Metric {
	n.Helper()
	for _, m := range n.Metric(name).GetMetric() {
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
	n := agenttest.Serving(t)
	before := series(n, "cni_ovs_transactions_total").GetCounter().GetValue()
	began, pod := time.Now(), n.CreatePod("measured")
	c := n.Sandbox(pod, agenttest.NewID())
	n.Idle.Store(true)
	done := make(chan error, 1)
	go func() { _, err := c.Add(); done <- err }()
	time.Sleep(pause)
	n.Annotate(pod, 400)
	n.Eventually("the port is in the database", func() bool { return len(n.Interfaces()) == 1 })
	time.Sleep(pause)
	name, _ := c.Port()
	n.Idle.Store(false)
	n.Touch(name)
	must.Succeed(t, <-done)
	c.MustDel()
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
		all := series(n, "cni_op_latency_seconds", "method", method, "node_name", agenttest.NodeName, "status_code", op.code).GetHistogram()
		if all.GetSampleCount() != 1 || all.GetSampleSum() <= 0 || all.GetSampleSum() > took {
			t.Errorf("cni_op_latency_seconds of %s is %v, want one of less than %v s", method, all, took)
		}
		for _, leg := range op.legs {
			got := series(n, "cni_op_leg_seconds", "leg", leg, "method", method, "node_name", agenttest.NodeName).GetHistogram()
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
		if got := series(n, name, "node_name", agenttest.NodeName).GetCounter().GetValue(); got < least || got <= 0 || got > took {
			t.Errorf("%s is %v, want at least its legs' %v and at most %v", name, got, least, took)
		}
	}
	if got := series(n, "cni_ovs_transactions_total").GetCounter().GetValue() - before; got < 2 {
		t.Errorf("%v transactions for an ADD and a DEL", got)
	}
}
