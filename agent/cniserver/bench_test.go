// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/cni/wire"
	"github.com/kiln-net/kiln/internal/testing/daemontest"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// BenchmarkCNI attaches and detaches pods that already have addresses: with the agent alone, and as a runtime does, which executes two
// plugins. Open vSwitch is real, but has no flows of OVN: the test plays ovn-controller and reports them as installed at once. An
// iteration is one pod; -benchtime=100x measures a hundred. Besides the percentiles of ADD and DEL, it reports the mean of each leg.
func BenchmarkCNI(b *testing.B) {
	for _, c := range []struct {
		name    string
		workers int
		runtime bool
	}{
		{"agent/1", 1, false}, {"agent/20", 20, false},
		{"runtime/1", 1, true}, {"runtime/20", 20, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			n := agenttest.Serving(b)
			n.VSCtl("set-fail-mode", "br-int", "secure") // as ovn-controller sets it: a bridge that floods gets slower with every port
			containers := make([]*agenttest.Container, b.N)
			for i := range containers {
				containers[i] = n.Sandbox(n.Pod(fmt.Sprintf("bench-%d", i), 1000+i), agenttest.NewID())
			}
			add, del := operations(n, c.runtime)
			before := spent(n)
			for _, operation := range []struct {
				name string
				do   func(*agenttest.Container) error
			}{{"add", add}, {"del", del}} {
				took := measure(b, containers, c.workers, operation.do)
				b.ReportMetric(milliseconds(percentile(took, 50)), operation.name+"-p50-ms")
				b.ReportMetric(milliseconds(percentile(took, 99)), operation.name+"-p99-ms")
				after := spent(n)
				for what, total := range after {
					if leg, isLeg := strings.CutPrefix(what, operation.name+" "); isLeg {
						b.ReportMetric((total-before[what])/float64(b.N)*1000, operation.name+"-"+leg+"-ms")
					} else if !strings.Contains(what, " ") {
						b.ReportMetric((total-before[what])/float64(b.N)*1000, operation.name+"-cpu-"+what+"-ms")
					}
				}
				before = after
			}
			b.ReportMetric(0, "ns/op") // hidden, because it has no meaning here
		})
	}
}

// operations returns ADD and DEL of the agent, or of a runtime.
func operations(n *agenttest.Node, runtime bool) (add, del func(*agenttest.Container) error) {
	if runtime {
		return func(c *agenttest.Container) error { _, err := c.Add(); return err }, (*agenttest.Container).Del
	}
	agent := wire.NewClient(n.Options.CNISocket)
	return func(c *agenttest.Container) error { _, err := agent.Add(c.Context(), requestOf(c)); return err },
		func(c *agenttest.Container) error { return agent.Del(c.Context(), requestOf(c)) }
}

// request returns the request that the plugin sends to the agent for the container.
func requestOf(c *agenttest.Container) wire.Request {
	return wire.Request{Network: "kube-ovn", Provider: "ovn", PodName: c.Pod.Name, PodNamespace: "default", PodUID: string(c.Pod.UID),
		ContainerID: c.ID, NetNS: c.Path, IfName: "eth0"}
}

// spent returns the total seconds of each leg ("add link"), and the CPU seconds of each process ("agent").
func spent(n *agenttest.Node) map[string]float64 {
	n.Helper()
	out := map[string]float64{}
	for _, metric := range n.Metric("cni_op_leg_seconds").GetMetric() {
		name := map[string]string{}
		for _, label := range metric.GetLabel() {
			name[label.GetName()] = label.GetValue()
		}
		out[name["method"]+" "+name["leg"]] = metric.GetHistogram().GetSampleSum()
	}
	for name, process := range map[string]*daemontest.Daemon{"agent": n.Agent, "vswitchd": n.VSwitchd, "ovsdb-server": n.Database} {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process.PID()))
		must.Succeed(n.TB, err)
		_, rest, _ := strings.Cut(string(stat), ") ")
		for _, ticks := range strings.Fields(rest)[11:13] { // utime and stime (proc_pid_stat(5)), in hundredths of a second
			value, err := strconv.ParseFloat(ticks, 64)
			must.Succeed(n.TB, err)
			out[name] += value / 100
		}
	}
	return out
}

// measure runs f for every container, several concurrently, and returns the sorted durations.
func measure(t testing.TB, containers []*agenttest.Container, workers int, f func(*agenttest.Container) error) []time.Duration {
	t.Helper()
	work := make(chan int)
	took := make([]time.Duration, len(containers))
	var wait sync.WaitGroup
	for range workers {
		wait.Go(func() {
			for i := range work {
				began := time.Now()
				if err := f(containers[i]); err != nil {
					t.Errorf("%s: %v", containers[i].Pod.Name, err)
				}
				took[i] = time.Since(began)
			}
		})
	}
	for i := range containers {
		work <- i
	}
	close(work)
	wait.Wait()
	slices.Sort(took)
	return took
}

func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[(len(sorted)-1)*p/100]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
