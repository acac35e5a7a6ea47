// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package monitor

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/kiln-net/kiln/internal/serving/tlsdir"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// serve serves a target's metrics over mTLS.
func serve(t *testing.T, servers, admin supervisortest.Authority, name string, address netip.AddrPort, text string) {
	t.Helper()
	dir := servers.TLSDir(t, name, map[string][]byte{"admin-ca.crt": admin.PEM})
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+adminapi.MetricsPath, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- adminapi.Serve(ctx, address.String(), dir, mux) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// gather returns the samples, `name{labels} value` with the labels' values.
func gather(t *testing.T, m *Monitor) map[string]float64 {
	t.Helper()
	families, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	samples := map[string]float64{}
	for _, f := range families {
		for _, metric := range f.Metric {
			var labels []string
			for _, l := range metric.Label {
				labels = append(labels, l.GetValue())
			}
			samples[f.GetName()+" "+strings.Join(labels, " ")] = metric.GetGauge().GetValue() + metric.GetCounter().GetValue() + metric.GetUntyped().GetValue()
		}
	}
	return samples
}

func TestMetricsOfAllTargetsAreMerged(t *testing.T) {
	servers, admin := supervisortest.NewAuthority(t, "servers"), supervisortest.NewAuthority(t, "admin")
	at := func(host byte) netip.AddrPort { return netip.AddrPortFrom(supervisortest.Loopback(host), 6651) }
	serve(t, servers, admin, "ovn-nb", at(1), `# TYPE kube_ovn_cluster_term gauge
kube_ovn_cluster_term{hostname="n1",db_name="OVN_Northbound"} 3
# TYPE kube_ovn_ovn_status gauge
kube_ovn_ovn_status{hostname="n1",component="ovsdb-server-northbound"} 1
# TYPE go_goroutines gauge
go_goroutines 4
`)
	serve(t, servers, admin, "ovn-nb", at(2), `# HELP kube_ovn_cluster_term The words of another version.
# TYPE kube_ovn_cluster_term gauge
kube_ovn_cluster_term{hostname="n2",db_name="OVN_Northbound"} 3
`)
	serve(t, servers, admin, "ovn-sb", at(3), "kube_ovn_cluster_term{\n")
	dir := admin.TLSDir(t, adminapi.MonitorName, map[string][]byte{"ca.crt": servers.PEM})
	m := &Monitor{
		Targets: func(context.Context) ([]Target, error) {
			return []Target{
				{"n1", "ovsdb-server-northbound", "ovn-nb", at(1)}, {"n2", "ovsdb-server-northbound", "ovn-nb", at(2)},
				{"n3", "ovsdb-server-southbound", "ovn-sb", at(3)}, // what it serves is no metric
				{"n4", "ovn-northd", "ovn-northd", at(4)},          // nothing listens
				{"n2", "ovn-northd", "ovn-northd", at(2)},          // the certificate has another name
			}, nil
		},
		Client: func(target Target) (*adminapi.Client, error) {
			config, err := tlsdir.Client(dir, target.Server)
			if err != nil {
				return nil, err
			}
			return adminapi.NewClient(target.Address, config), nil
		},
		Log: supervisortest.Log(t),
	}
	supervisortest.Eventually(t, "two targets are read", func() error {
		m.at = time.Time{}
		if got := gather(t, m); got["kiln_monitor_target_up ovsdb-server-northbound n1"]+got["kiln_monitor_target_up ovsdb-server-northbound n2"] < 2 {
			return errors.New("not yet")
		}
		return nil
	})
	m.failed, m.at = nil, time.Time{}
	got := gather(t, m)
	want := map[string]float64{
		"kube_ovn_cluster_term OVN_Northbound n1": 3, "kube_ovn_cluster_term OVN_Northbound n2": 3,
		"kube_ovn_ovn_status ovsdb-server-northbound n1": 1,
		"kube_ovn_ovn_status ovsdb-server-southbound n3": 0, "kube_ovn_ovn_status ovn-northd n4": 0, "kube_ovn_ovn_status ovn-northd n2": 0,
		"kiln_monitor_target_up ovsdb-server-northbound n1": 1, "kiln_monitor_target_up ovsdb-server-northbound n2": 1,
		"kiln_monitor_target_up ovsdb-server-southbound n3": 0, "kiln_monitor_target_up ovn-northd n4": 0, "kiln_monitor_target_up ovn-northd n2": 0,
		"kube_ovn_failed_req_count n1": 0, "kube_ovn_failed_req_count n2": 1, "kube_ovn_failed_req_count n3": 1, "kube_ovn_failed_req_count n4": 1,
	}
	for sample, value := range want {
		if now, is := got[sample]; !is || now != value {
			t.Errorf("%s is %v (%t), want %v", sample, now, is, value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d samples instead of %d: %v", len(got), len(want), got)
	}
	if again := gather(t, m); again["kube_ovn_failed_req_count n4"] != 1 {
		t.Error("a request within gatherInterval has read the targets again")
	}
}

func TestTargetsAreThePodsOfDatabasesAndNorthd(t *testing.T) {
	pod := func(name, component, ip string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system", Labels: map[string]string{"app": "ovn-central", componentLabel: component}},
			Spec:       corev1.PodSpec{NodeName: "node-of-" + name},
			Status:     corev1.PodStatus{PodIP: ip, Phase: corev1.PodRunning},
		}
		if change != nil {
			change(p)
		}
		return p
	}
	client := fake.NewClientset(
		pod("nb", "ovn-central-nb", "192.0.2.1", nil), pod("sb", "ovn-central-sb", "2001:db8::1", nil), pod("northd", "ovn-central-northd", "192.0.2.2", nil),
		pod("pending", "ovn-central-nb", "", nil), pod("backups", "ovn-central-backups", "192.0.2.3", nil),
		pod("failed", "ovn-central-northd", "192.0.2.4", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }),
	)
	pods := &Pods{Client: client.CoreV1().Pods("kube-system")}
	check := func() {
		t.Helper()
		targets, err := pods.Targets(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		found := map[Target]bool{}
		for _, target := range targets {
			found[target] = true
		}
		for _, want := range []Target{
			{"node-of-nb", "ovsdb-server-northbound", "ovn-nb", netip.MustParseAddrPort("192.0.2.1:6651")},
			{"node-of-sb", "ovsdb-server-southbound", "ovn-sb", netip.MustParseAddrPort("[2001:db8::1]:6652")},
			{"node-of-northd", "ovn-northd", "ovn-northd", netip.MustParseAddrPort("192.0.2.2:6655")},
		} {
			if !found[want] || len(targets) != 3 {
				t.Errorf("%v is not in %v", want, targets)
			}
		}
	}
	check()
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no connection")
	})
	check() // without the API server
	if _, err := (&Pods{Client: client.CoreV1().Pods("kube-system")}).Targets(t.Context()); err == nil {
		t.Error("no error without any list of pods")
	}
}
