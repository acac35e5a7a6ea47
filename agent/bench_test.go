// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/testutils"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/cni/wire"
	"github.com/kiln-net/kiln/internal/daemontest"
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
			n := serving(b)
			n.vsctl("set-fail-mode", "br-int", "secure") // as ovn-controller sets it: a bridge that floods gets slower with every port
			containers := make([]*container, b.N)
			for i := range containers {
				containers[i] = n.sandbox(n.pod(fmt.Sprintf("bench-%d", i), 1000+i), newID())
			}
			add, del := n.operations(c.runtime)
			before := n.spent()
			for _, operation := range []struct {
				name string
				do   func(*container) error
			}{{"add", add}, {"del", del}} {
				took := measure(b, containers, c.workers, operation.do)
				b.ReportMetric(milliseconds(percentile(took, 50)), operation.name+"-p50-ms")
				b.ReportMetric(milliseconds(percentile(took, 99)), operation.name+"-p99-ms")
				after := n.spent()
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
func (n *node) operations(runtime bool) (add, del func(*container) error) {
	if runtime {
		return func(c *container) error { _, err := c.add(); return err }, (*container).del
	}
	agent := wire.NewClient(n.options.CNISocket)
	return func(c *container) error { _, err := agent.Add(c.Context(), c.request()); return err },
		func(c *container) error { return agent.Del(c.Context(), c.request()) }
}

// request returns the request that the plugin sends to the agent for the container.
func (c *container) request() wire.Request {
	return wire.Request{Network: "kube-ovn", Provider: "ovn", PodName: c.pod.Name, PodNamespace: "default", PodUID: string(c.pod.UID),
		ContainerID: c.id, NetNS: c.path, IfName: "eth0"}
}

// spent returns the total seconds of each leg ("add link"), and the CPU seconds of each process ("agent").
func (n *node) spent() map[string]float64 {
	n.Helper()
	out := map[string]float64{}
	for _, metric := range n.metric("cni_op_leg_seconds").GetMetric() {
		name := map[string]string{}
		for _, label := range metric.GetLabel() {
			name[label.GetName()] = label.GetValue()
		}
		out[name["method"]+" "+name["leg"]] = metric.GetHistogram().GetSampleSum()
	}
	for name, process := range map[string]*daemontest.Daemon{"agent": n.agent, "vswitchd": n.vswitchd, "ovsdb-server": n.server} {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process.PID()))
		must(n.TB, err)
		_, rest, _ := strings.Cut(string(stat), ") ")
		for _, ticks := range strings.Fields(rest)[11:13] { // utime and stime (proc_pid_stat(5)), in hundredths of a second
			value, err := strconv.ParseFloat(ticks, 64)
			must(n.TB, err)
			out[name] += value / 100
		}
	}
	return out
}

// metric returns the current value of one of the agent's metrics.
func (n *node) metric(name string) *dto.MetricFamily {
	n.Helper()
	answer, err := http.Get("http://" + healthPort + "/metrics")
	must(n.TB, err)
	defer answer.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(answer.Body)
	must(n.TB, err)
	return families[name]
}

// measure runs f for every container, several concurrently, and returns the sorted durations.
func measure(t testing.TB, containers []*container, workers int, f func(*container) error) []time.Duration {
	t.Helper()
	work := make(chan int)
	took := make([]time.Duration, len(containers))
	var wait sync.WaitGroup
	for range workers {
		wait.Go(func() {
			for i := range work {
				began := time.Now()
				if err := f(containers[i]); err != nil {
					t.Errorf("%s: %v", containers[i].pod.Name, err)
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

// BenchmarkSandbox measures the kernel's part: creating, configuring and deleting a container's interface.
func BenchmarkSandbox(b *testing.B) {
	interfaces := make([]sandbox.Interface, b.N)
	for i := range interfaces {
		namespace, err := testutils.NewNS()
		must(b, err)
		b.Cleanup(func() { _ = errors.Join(namespace.Close(), testutils.UnmountNS(namespace)) })
		interfaces[i] = sandbox.Interface{
			NetNS: namespace.Path(), Name: "eth0", HostName: sandbox.HostName(newID(), "eth0", 0), ComputeChecksums: true,
			MAC: net.HardwareAddr{2, 0, 0, 0, byte(i >> 8), byte(i)}, MTU: podMTU,
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.16.0.9/16"), netip.MustParsePrefix("fd00:10:16::9/112")},
			Routes:    []sandbox.Route{{To: netip.MustParsePrefix("0.0.0.0/0"), Via: podGWs[0]}, {To: netip.MustParsePrefix("::/0"), Via: podGWs[1]}},
		}
	}
	b.ResetTimer()
	for _, step := range []struct {
		name string
		do   func(sandbox.Interface) error
	}{
		{"create", sandbox.Interface.Create},
		{"configure", sandbox.Interface.Configure},
		{"remove", func(i sandbox.Interface) error { return sandbox.Remove(i.HostName) }},
	} {
		took := make([]time.Duration, b.N)
		for i := range interfaces {
			began := time.Now()
			must(b, step.do(interfaces[i]))
			took[i] = time.Since(began)
		}
		slices.Sort(took)
		b.ReportMetric(milliseconds(percentile(took, 50)), step.name+"-p50-ms")
	}
	b.ReportMetric(0, "ns/op")
}
