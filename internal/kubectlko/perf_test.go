// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/internal/netprobe/measure"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// perfNetwork is a cluster, and a run of `kubectl ko perf` in it.
type perfNetwork struct {
	*network
	run *perfRun
	// made are the measurements.
	made []measure.Measurement
	// fails returns an error of a measurement, or nil.
	fails func(m measure.Measurement) error
	// unreached is the error of all pods.
	unreached error
}

func newPerfNetwork(t *testing.T, nodes ...string) *perfNetwork {
	n := &perfNetwork{network: newNetwork(t), fails: func(measure.Measurement) error { return nil }}
	n.run = n.newPerfRun(podRunFlags{maxNodes: 2, nodes: nodes}, perfFlags{duration: time.Second, hostPort: perfHostPort, output: output{format: formatText, own: []string{formatText}}})
	n.run.startTime, n.run.removal, n.run.measure = 30*time.Second, 30*time.Second, n.results
	return n
}

func (n *perfNetwork) results(_ context.Context, _ *corev1.Pod, list []measure.Measurement) ([]measure.Outcome, error) {
	var outcomes []measure.Outcome
	for _, m := range list {
		n.made = append(n.made, m)
		o := measure.Outcome{Result: measure.Result{Rate: 2e9, Median: float64(m.Size), P99: float64(m.Size) + 0.6}}
		if m.Kind == measure.Full {
			o.Rate, o.Size, o.Lost = 1e5, 1372, 0.125
		}
		if err := n.fails(m); err != nil {
			o = measure.Outcome{Error: err.Error()}
		}
		outcomes = append(outcomes, o)
	}
	return outcomes, n.unreached
}

func (n *perfNetwork) isClean() bool {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n.run.name}}
	return apierrors.IsNotFound(n.objects.Get(context.Background(), client.ObjectKeyFromObject(namespace), namespace))
}

func TestPerf(t *testing.T) {
	n := newPerfNetwork(t, "node-2", "node-1")
	out := &strings.Builder{}
	n.run.out, n.run.output.format = out, "json"
	must.Succeed(t, n.run.run(t.Context()))
	var report PerfReport
	if err := json.Unmarshal([]byte(out.String()), &report); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !n.isClean() {
		t.Error("objects are left")
	}
	// The world's Services have one family: the API server has no second range.
	if families := len(n.run.service.Spec.ClusterIPs); len(report.Rows) != 2*2*(2+2+families) {
		t.Errorf("%d rows", len(report.Rows))
	}
	for _, row := range report.Rows {
		if row.To != "node-2" || row.From != "node-1" && row.From != "node-2" {
			t.Errorf("the server is on node-2, which the first --node names, and not on %s", row.To)
		}
		if udp := row.Protocol == "udp"; len(row.RoundTrips) != len(messageSizes) || row.RoundTrips[4].P99 != 4096.6 || udp != (row.Lost == 0.125) || udp == (row.BitsPerSecond == 2e9) {
			t.Errorf("row %+v", row)
		}
	}
	ports := map[string]uint16{}
	for _, m := range n.made {
		if m.Key == "" || m.Key != n.run.key || m.Duration != time.Second {
			t.Errorf("measurement %+v", m)
		}
		to := netip.MustParseAddrPort(m.Address)
		ports[to.Addr().String()] = to.Port()
	}
	for address, pod := range n.pods {
		if port := ports[address.String()]; pod.Name == perfServer && port != perfPodPort || pod.Name == perfHostServer && port != perfHostPort {
			t.Errorf("pod %s was measured at port %d", pod.Name, port)
		}
	}
	for _, pod := range n.run.wanted {
		if *pod.Spec.ActiveDeadlineSeconds < int64(podLife.Seconds()) {
			t.Errorf("pod %s lives for %d s", pod.Name, *pod.Spec.ActiveDeadlineSeconds)
		}
	}
}

func TestPerfTable(t *testing.T) {
	report := &PerfReport{Rows: []PerfRow{
		{
			Path: "pod network", From: "worker-1", To: "worker-1", Family: ipv4, Protocol: "tcp", BitsPerSecond: 12.341e9,
			RoundTrips: []RoundTrip{{64, 41.4, 87.2, 0}, {128, 42, 88, 0}, {512, 43, 90, 0}, {1024, 45, 95, 0}, {4096, 70, 120, 0}},
		},
		{
			Path: "Service", From: "worker-2", To: "worker-1", Family: ipv6, Protocol: "udp", BitsPerSecond: 812.3e6, PacketBytes: 1352, Lost: 0.2514,
			RoundTrips: []RoundTrip{{64, 101, 200, 0}}, Errors: []string{"round trips of 128 bytes: no answer to 5 packets"},
		},
	}}
	out := &strings.Builder{}
	must.Succeed(t, report.write(out))
	const want = `PATH         NODES                FAMILY  PROTOCOL  THROUGHPUT    LOST    64       128    512    1k     4k
pod network  worker-1             IPv4    tcp       12.34 Gbit/s  -       41/87    42/88  43/90  45/95  70/120
Service      worker-2 → worker-1  IPv6    udp       812.3 Mbit/s  25.1 %  101/200  -      -      -      -
The last columns are round trips of messages of this size in bytes: median/99th percentile in microseconds.
FAIL  Service, worker-2 → worker-1, IPv6, udp: round trips of 128 bytes: no answer to 5 packets
`
	if out.String() != want {
		t.Errorf("the table is\n%s", out)
	}
}

// TestPerfFailures: other measurements are made, and the error names the nodes.
func TestPerfFailures(t *testing.T) {
	n := newPerfNetwork(t)
	n.fails = func(m measure.Measurement) error {
		if m.Kind == measure.Stream && strings.HasPrefix(m.Address, "10.16.") {
			return errors.New("connect: i/o timeout \x1b[31m")
		}
		return nil
	}
	err := n.run.run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "2 measurements failed: node-1 → node-1, node-2 → node-1") {
		t.Errorf("the error is %v", err)
	}
	if !strings.Contains(n.out.String(), "FAIL  pod network, node-2 → node-1, IPv4, tcp: throughput: connect: i/o timeout ?[31m") || !n.isClean() {
		t.Errorf("objects are deleted: %t; it said %s", n.isClean(), n.out)
	}
}

func TestPerfInPodsThatAreNotReached(t *testing.T) {
	n := newPerfNetwork(t, "node-2")
	n.unreached = errors.New("execute kiln in pod pod-0: the kubelet does not answer")
	err := n.run.run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "measurements failed: node-2 → node-2") || !strings.Contains(n.out.String(), "tcp: execute kiln in pod pod-0: the kubelet") {
		t.Errorf("error %v; it said %s", err, n.out)
	}
}

// TestAnInterruptedPerfPrintsItsReport: measurements take minutes.
func TestAnInterruptedPerfPrintsItsReport(t *testing.T) {
	n := newPerfNetwork(t)
	ctx, interrupt := context.WithCancel(t.Context())
	n.fails = func(m measure.Measurement) error {
		if m.Kind == measure.Full {
			interrupt()
		}
		return nil
	}
	err := n.run.run(ctx)
	if err == nil || !strings.Contains(err.Error(), "interrupted") || strings.Count(n.out.String(), "2.00 Gbit/s") != 1 || !n.isClean() {
		t.Errorf("objects are deleted: %t; error %v; it said %s", n.isClean(), err, n.out)
	}
}

func TestAServerThatDoesNotStart(t *testing.T) {
	n := newPerfNetwork(t)
	n.run.startTime = 20 * time.Second // in which a busy machine starts the others
	n.late = func(pod *corev1.Pod) bool {
		if pod.Name != perfHostServer {
			return false
		}
		pod.Status.Phase = corev1.PodFailed
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "netprobe", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error", Message: "listen: address already in use\n"}}}}
		must.Succeed(n.world, n.objects.Status().Update(t.Context(), pod))
		return true
	}
	err := n.run.run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "pods do not start on node-1") || strings.Contains(n.out.String(), "host network") ||
		!strings.Contains(n.out.String(), "it does not run: Failed, Error, listen: address already in use") {
		t.Errorf("error %v; it said %s", err, n.out)
	}
}

func TestRefusedPerf(t *testing.T) {
	w := newWorld(t)
	w.fails("no pod of kube-ovn-cni is in namespace kube-system", "perf")
	w.fails("no pod of kube-ovn-cni is in namespace kube-system", "perf", "docker.io/kubeovn/test:v1.13.0")
	w.fails("at most one other", "perf", "--node=a", "--node=b", "--node=c")
	w.fails("use a duration from 100ms to 1m", "perf", "--duration=1h")
	w.fails("--host-port must be greater than 0", "perf", "--host-port=0")
	w.fails("use one of text, json, yaml", "perf", "-o", "wide")
}
