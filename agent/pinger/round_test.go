// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pinger

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/nodehealth"
)

const self = "node-1"

// world is a Pinger with everything that it checks, on this machine.
type world struct {
	*Pinger
	settings Settings
	names    *nameServer
	ready    atomic.Int32 // status code of /readyz
	report   nodehealth.Report
	noReport error
	pods     []corev1.Pod
	noPods   error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	carrier(t)
	w := &world{names: serveNames(t, "kubernetes.default")}
	w.ready.Store(http.StatusOK)
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || r.Header.Get("Authorization") != "Bearer token" {
			response.WriteHeader(http.StatusNotFound)
			return
		}
		response.WriteHeader(int(w.ready.Load()))
	}))
	t.Cleanup(server.Close)
	apiServer, err := APIServer(&rest.Config{Host: server.URL, BearerToken: "token"})
	if err != nil {
		t.Fatal(err)
	}
	peer := podOn("node-2", "192.0.2.2", "192.0.2.3")
	peer.Status.PodIPs = append(peer.Status.PodIPs, corev1.PodIP{IP: "2001:db8::2"})
	w.pods = []corev1.Pod{podOn(self, "192.0.2.1", "192.0.2.1"), peer}
	w.report = nodehealth.Report{Ports: 2}
	w.settings = Settings{Interval: time.Second, Peers: 10, InternalNames: []string{"kubernetes.default."}, ExternalAddresses: addrs("127.0.0.1", "::1")}
	w.Pinger = &Pinger{
		Node: self, PodIPs: addrs("192.0.2.1", "2001:db8::1"), HostIPs: addrs("192.0.2.10"),
		Pods:      func(context.Context) ([]corev1.Pod, error) { return w.pods, w.noPods },
		APIServer: apiServer, Resolver: w.names.resolver(),
		Report: func(context.Context) (nodehealth.Report, error) { return w.report, w.noReport },
		Log:    logr.Discard(),
	}
	return w
}

// failed returns the checks that fail in one round.
func (w *world) failed(t *testing.T) []Check {
	t.Helper()
	var failed []Check
	for _, r := range w.round(t.Context(), w.settings) {
		if r.Err != nil {
			t.Logf("%s %s: %v", r.Check, r.Target, r.Err)
			failed = append(failed, r.Check)
		}
	}
	slices.Sort(failed)
	return slices.Compact(failed)
}

// TestEachFaultFailsItsCheckOnly makes one fault after the other; between two of them all checks pass.
func TestEachFaultFailsItsCheckOnly(t *testing.T) {
	w := newWorld(t)
	if failed := w.failed(t); failed != nil {
		t.Fatalf("without a fault: %v", failed)
	}
	try := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, fault := range []struct {
		name      string
		make, end func()
		fails     []Check
	}{
		{"the link of the other node is cut", func() { try(other.LinkSetDown(peerLink)) }, func() { try(peerUp()) }, []Check{CheckNode, CheckPod}},
		{
			"the other node does not answer, and its pod does",
			func() { try(other.AddrDel(peerLink, address("192.0.2.3/24"))) }, func() { try(peerUp()) }, []Check{CheckNode},
		},
		{"DNS is stopped", func() { w.names.stopped.Store(true) }, func() { w.names.stopped.Store(false) }, []Check{CheckInternalDNS}},
		{
			"a name does not exist", func() { w.settings.InternalNames = []string{"none.default."} },
			func() { w.settings.InternalNames = []string{"kubernetes.default."} }, []Check{CheckInternalDNS},
		},
		{
			"an external name does not exist", func() { w.settings.ExternalNames = []string{"none.example."} },
			func() { w.settings.ExternalNames = nil }, []Check{CheckExternalDNS},
		},
		{
			"an external address does not answer", func() { w.settings.ExternalAddresses = addrs("192.0.2.99") },
			func() { w.settings.ExternalAddresses = addrs("127.0.0.1") }, []Check{CheckExternal},
		},
		{
			"the API server is not ready", func() { w.ready.Store(http.StatusInternalServerError) },
			func() { w.ready.Store(http.StatusOK) }, []Check{CheckAPIServer},
		},
		{
			"ovn-controller is stopped", func() { w.report.OVNController = "does not answer" },
			func() { w.report.OVNController = "" }, []Check{CheckOVNController},
		},
		{
			"ovs-vswitchd is stopped", func() { w.report.OpenVSwitch = "does not answer" },
			func() { w.report.OpenVSwitch = "" }, []Check{CheckOpenVSwitch},
		},
		{
			"the southbound database is lost", func() { w.report.Southbound = "ovn-controller is not connected" },
			func() { w.report.Southbound = "" }, []Check{CheckSouthbound},
		},
		{
			"a port is not bound", func() { w.report.Unbound = []string{"d1"} }, func() { w.report.Unbound = nil }, []Check{CheckPorts},
		},
		{
			"a pod has no port", func() { w.report.Portless = []string{"0123456789ab_h"} }, func() { w.report.Portless = nil }, []Check{CheckPorts},
		},
		{
			"ovs-ovn does not run", func() { w.noReport = errors.New("connection refused") },
			func() { w.noReport = nil }, []Check{CheckOpenVSwitch, CheckOVNController},
		},
		{"the pods cannot be listed", func() { w.noPods = errors.New("forbidden") }, func() { w.noPods = nil }, []Check{CheckPod}},
	} {
		t.Run(fault.name, func(t *testing.T) {
			fault.make()
			if failed := w.failed(t); !slices.Equal(failed, slices.Sorted(slices.Values(fault.fails))) {
				t.Errorf("%v fail; want %v", failed, fault.fails)
			}
			fault.end()
			carrier(t)
			if failed := w.failed(t); failed != nil {
				t.Errorf("after the fault: %v", failed)
			}
		})
	}
}

func TestMetricsOfRounds(t *testing.T) {
	w := newWorld(t)
	is := func(what string, c prometheus.Collector, want float64) {
		t.Helper()
		if got := testutil.ToFloat64(c); got != want {
			t.Errorf("%s: %v; want %v", what, got, want)
		}
	}
	for _, c := range []interface{ Reset() }{podLost, podCount, podLatency, nodeLost, nodeCount, externalLost} {
		c.Reset()
	}
	w.failed(t)
	is("ovs up", ovsUp.WithLabelValues(self), 1)
	is("ovs down", ovsDown.WithLabelValues(self), 0)
	is("southbound", southboundConnected.WithLabelValues(self), 1)
	is("ports", inconsistentPorts.WithLabelValues(self), 0)
	is("API server", apiserverHealthy.WithLabelValues(self), 1)
	is("DNS", internalDNSUnhealthy.WithLabelValues(self), 0)
	is("packets to the pod", podCount.WithLabelValues(self, "192.0.2.10", "192.0.2.1", "node-2", "192.0.2.3", "192.0.2.2"), 3)
	is("packets by IPv6", podCount.WithLabelValues(self, "192.0.2.10", "2001:db8::1", "node-2", "192.0.2.3", "2001:db8::2"), 3)
	is("lost packets", nodeLost.WithLabelValues(self, "192.0.2.10", "192.0.2.1", "node-2", "192.0.2.3"), 0)
	if n := testutil.CollectAndCount(podLatency); n != 2 {
		t.Errorf("%d histograms of pods", n)
	}
	if n := testutil.CollectAndCount(externalDNSHealthy); n != 0 {
		t.Errorf("%d series of external names, and none is configured", n)
	}

	w.report = nodehealth.Report{OpenVSwitch: "does not answer", OVNController: "does not answer"}
	w.pods, w.settings.ExternalAddresses = w.pods[:1], addrs("192.0.2.99")
	w.failed(t)
	is("ovs up", ovsUp.WithLabelValues(self), 0)
	is("ovs down", ovsDown.WithLabelValues(self), 1)
	is("ovn-controller down", ovnControllerDown.WithLabelValues(self), 1)
	is("lost packets", externalLost.WithLabelValues(self, "192.0.2.10", "192.0.2.1", "192.0.2.99"), 3)
	for what, c := range map[string]prometheus.Collector{
		"pods": podCount, "nodes": nodeLost, "latencies": podLatency, "ports, which are not known": inconsistentPorts, "southbound": southboundConnected,
	} {
		if n := testutil.CollectAndCount(c); n != 0 {
			t.Errorf("%d series of %s", n, what)
		}
	}
}

func TestNewPortsHaveTimeToSettle(t *testing.T) {
	p := Pinger{settle: settleTime}
	now := time.Now()
	steps := []struct {
		after   time.Duration
		unbound []string
		late    []string
	}{
		{0, []string{"a"}, nil},
		{10 * time.Second, []string{"a", "b"}, nil},
		{15 * time.Second, []string{"a", "b"}, []string{"a"}},
		{20 * time.Second, []string{"b"}, nil},
		{26 * time.Second, []string{"a", "b"}, []string{"b"}},
	}
	for _, s := range steps {
		if late := p.late(s.unbound, now.Add(s.after)); !slices.Equal(late, s.late) {
			t.Errorf("after %s: %v are late; want %v", s.after, late, s.late)
		}
	}
}

func TestAJobPrintsItsResults(t *testing.T) {
	w := newWorld(t)
	var out strings.Builder
	if err := w.Job(t.Context(), w.settings, &out); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 11 || !strings.HasPrefix(lines[0], "ok  open-vswitch") || !strings.Contains(out.String(), "192.0.2.2 on node-2") {
		t.Errorf("%d lines:\n%s", len(lines), out.String())
	}
	w.noReport = errors.New("connection refused")
	out.Reset()
	err := w.Job(t.Context(), w.settings, &out)
	if failed := (FailedError{}); !errors.As(err, &failed) || failed != (FailedError{Failed: 2, Checks: 9}) {
		t.Errorf("%v\n%s", err, out.String())
	}
	if !strings.Contains(out.String(), "FAILED  ovn-controller  node-1                 connection refused\n") {
		t.Errorf("results:\n%s", out.String())
	}
}

func TestSettingsOfTheOVNCluster(t *testing.T) {
	got := SettingsOf(v1alpha1.Pinger{
		Interval: &metav1.Duration{Duration: time.Minute}, ExternalAddresses: []string{"192.0.2.1", "2001:db8::1"}, InternalNames: []string{"a"},
	})
	want := Settings{Interval: time.Minute, Peers: v1alpha1.DefaultPeers, ExternalAddresses: addrs("192.0.2.1", "2001:db8::1"), InternalNames: []string{"a"}}
	if !got.equal(want) {
		t.Errorf("%+v", got)
	}
	if got := SettingsOf(v1alpha1.Pinger{Peers: new(int32(0))}); got.Peers != 0 {
		t.Errorf("%+v", got)
	}
}

// TestSettingsChangeWhilePingerRuns starts without settings, and has an interval in which no second round would begin.
func TestSettingsChangeWhilePingerRuns(t *testing.T) {
	w := newWorld(t)
	rounds := make(chan int, 10)
	w.Pods = func(context.Context) ([]corev1.Pod, error) {
		rounds <- len(w.Pinger.settings.Load().ExternalAddresses)
		return nil, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Start(ctx) }()
	for n := range 2 {
		s := Settings{Interval: time.Hour, ExternalAddresses: addrs("127.0.0.1", "127.0.0.2")[:n]}
		w.Set(s)
		w.Set(s) // no change
		if got := <-rounds; got != n {
			t.Errorf("a round with %d addresses; want %d", got, n)
		}
	}
	cancel()
	if err := <-done; err != nil || len(rounds) > 0 {
		t.Errorf("%v, and %d more rounds", err, len(rounds))
	}
}

func ExampleFailedError() {
	fmt.Println(FailedError{Failed: 2, Checks: 9})
	// Output: 2 of 9 checks failed
}

// TestLargeClustersAskServersInFewerRounds has 250 nodes: each checks the API server and names in every third round, and reports the last result between.
func TestLargeClustersAskServersInFewerRounds(t *testing.T) {
	w := newWorld(t)
	requests := 0
	ask := w.APIServer
	w.APIServer = func(ctx context.Context) error {
		requests++
		return ask(ctx)
	}
	w.settings.Peers, w.settings.ExternalAddresses = 0, nil
	for i := range 248 {
		w.pods = append(w.pods, podOn(fmt.Sprintf("more-%d", i), "192.0.2.100", "192.0.2.101"))
	}
	w.failed(t)
	w.ready.Store(http.StatusServiceUnavailable)
	for round, want := range [][]Check{nil, nil, {CheckAPIServer}, {CheckAPIServer}, {CheckAPIServer}} {
		if failed := w.failed(t); !slices.Equal(failed, want) {
			t.Errorf("round %d: %v, want %v", round, failed, want)
		}
		if up := testutil.ToFloat64(apiserverHealthy.WithLabelValues(self)); (up == 1) != (want == nil) {
			t.Errorf("round %d: the series is %v", round, up)
		}
	}
	if requests != 2 {
		t.Errorf("%d requests", requests)
	}
	w.ready.Store(http.StatusOK)
	w.settings.InternalNames = []string{"none.default."}
	if failed := w.failed(t); !slices.Equal(failed, []Check{CheckInternalDNS}) {
		t.Errorf("after a change of the settings: %v", failed)
	}
}
