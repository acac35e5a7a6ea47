// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
	"github.com/kiln-net/kiln/supervisor/unixctl"
)

type families map[string]*dto.MetricFamily

func parseMetrics(t *testing.T, from io.Reader) families {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return must.Value(parser.TextToMetricFamilies(from))
}

// metricsOfNode reads the metrics of `kiln ovs`.
func metricsOfNode(t *testing.T, o Options) families {
	t.Helper()
	response := must.Value(http.Get("http://" + o.HealthAddress + "/metrics"))
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatal(response.Status)
	}
	return parseMetrics(t, response.Body)
}

// value returns the only sample of a family with these labels, `name=value`.
func (f families) value(t *testing.T, family string, labels ...string) float64 {
	t.Helper()
	var found []float64
	for _, m := range f[family].GetMetric() {
		has := map[string]bool{}
		for _, l := range m.Label {
			has[l.GetName()+"="+l.GetValue()] = true
		}
		if !slices.ContainsFunc(labels, func(l string) bool { return !has[l] }) {
			found = append(found, m.GetGauge().GetValue()+m.GetCounter().GetValue())
		}
	}
	if len(found) != 1 {
		t.Errorf("%s has %d samples with %q: %v", family, len(found), labels, f[family])
		return -1
	}
	return found[0]
}

// registered runs `kiln ovs` with databases until the test ends, and waits for its chassis. Its OVNCluster is the newest of the channel.
func registered(t *testing.T, c central) (o Options, newest chan *v1alpha1.OVNCluster) {
	t.Helper()
	o, newest = nodeOptions(t, c), make(chan *v1alpha1.OVNCluster, 1)
	newest <- c.cluster
	o.Clusters = newest
	background(t, func(ctx context.Context) error { return Run(ctx, o) })
	healthy(t, o.HealthAddress)
	supervisortest.Eventually(t, "the chassis is registered", func() error { return checkChassis(t, c.southbound) })
	return o, newest
}

// TestMetrics reads the metrics of running databases, ovn-northd and a node.
func TestMetrics(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	nodetest.Wire(t)
	c := startCentral(t)
	o, newest := registered(t, c)
	northbound := filepath.Join(filepath.Dir(c.southbound), "ovnnb_db.sock")
	command(t, "usr/bin/ovn-nbctl", "--db=unix:"+northbound, "--wait=sb", "ls-add", "red", "--", "lsp-add", "red", "p1", "--", "lsp-add", "red", "p2")
	for _, pod := range []string{"pod-a", "pod-b"} {
		command(t, "usr/bin/ovs-vsctl", "--db=unix:"+o.socket(), "--timeout=120", "add-port", "br-int", pod, "--", "set", "Interface", pod, "type=internal",
			"external_ids:pod_name="+pod, "external_ids:pod_namespace=default")
	}

	dropPackets(t, o, northbound)

	for port, name := range map[uint16]string{adminapi.PortNorthbound: "OVN_Northbound", adminapi.PortSouthbound: "OVN_Southbound"} {
		t.Run(name, func(t *testing.T) { checkMember(t, readMetrics(t, c, port), name) })
	}
	t.Run("northd", func(t *testing.T) { checkNorthd(t, readMetrics(t, c, adminapi.PortNorthd)) })
	t.Run("northd in a long iteration", func(t *testing.T) { checkBusyNorthd(t, c) })
	t.Run("node", func(t *testing.T) { checkNode(t, metricsOfNode(t, o)) })
	t.Run("node with every port", func(t *testing.T) {
		changed := c.cluster.DeepCopy()
		changed.Spec.Monitoring.PortSeries = v1alpha1.PortSeriesAll
		newest <- changed
		supervisortest.Eventually(t, "the ports have series", func() error {
			if f := metricsOfNode(t, o); len(f["kube_ovn_dp_if"].GetMetric()) < 4 {
				return fmt.Errorf("kube_ovn_dp_if has %d series", len(f["kube_ovn_dp_if"].GetMetric()))
			}
			return nil
		})
		f := metricsOfNode(t, o)
		f.value(t, "kube_ovn_interface_rx_bytes", "interfaceName=pod-a", "pod_name=pod-a", "pod_namespace=default")
		for _, m := range f["kube_ovn_interface_rx_bytes"].GetMetric() {
			if strings.Contains(m.String(), `"`+podsSum+`"`) {
				t.Errorf("it still has a sum: %s", m)
			}
		}
	})
	t.Run("node with a stopped ovs-vswitchd", func(t *testing.T) { checkStopped(t, o) })
	t.Run("node without ovs-vswitchd", func(t *testing.T) {
		_, err := unixctl.Call(t.Context(), control(t, o.RunDir, "ovs-vswitchd"), "version")
		must.Succeed(t, err)
		kill(t, filepath.Join(o.RunDir, "ovs-vswitchd.pid"))
		f := metricsOfNode(t, o) // while it is started again, or after that
		if len(f["kube_ovn_ovs_status"].GetMetric()) != 3 {
			t.Errorf("status of %v", f["kube_ovn_ovs_status"])
		}
	})
}

// dropPackets sends more neighbour solicitations from pod-a than the limit of VPC red permits.
func dropPackets(t *testing.T, o Options, northbound string) {
	t.Helper()
	command(t, "usr/bin/ovn-nbctl", "--db=unix:"+northbound, "lsp-set-addresses", "p2", "02:00:00:00:00:02 fd00::2",
		"--", "meter-add", "copp-neighbors-red", "drop", "1", "pktps", "--", "--id=@copp", "create", "Copp", "name=copp-red", "meters:nd-na=copp-neighbors-red",
		"--", "set", "Logical_Switch", "red", "copp=@copp")
	command(t, "usr/bin/ovs-vsctl", "--db=unix:"+o.socket(), "--timeout=120", "set", "Interface", "pod-a", "external_ids:iface-id=p1")
	command(t, "usr/bin/ovn-nbctl", "--db=unix:"+northbound, "--wait=hv", "sync")
	// To the solicited-node address of fd00::2, from fd00::1 (RFC 4861, section 4.3).
	const solicitation = "3333ff000002" + "020000000001" + "86dd" + "6000000000203aff" + "fd000000000000000000000000000001" + "ff0200000000000000000001ff000002" +
		"8700000000000000" + "fd000000000000000000000000000002" + "0101020000000001"
	supervisortest.Eventually(t, "solicitations are dropped", func() error {
		for range 3 {
			command(t, "usr/bin/ovs-ofctl", "-OOpenFlow15", "packet-out", "unix:"+o.management(), "in_port=pod-a packet="+solicitation+" actions=resubmit(,0)")
		}
		if len(metricsOfNode(t, o)["kiln_ovn_controller_dropped_packets_total"].GetMetric()) == 0 {
			return errors.New("none was dropped")
		}
		return nil
	})
}

// checkStopped stops ovs-vswitchd: the figures of the other daemons are still there.
func checkStopped(t *testing.T, o Options) {
	t.Helper()
	pid := must.Value(strconv.Atoi(strings.TrimSpace(string(must.Value(os.ReadFile(filepath.Join(o.RunDir, "ovs-vswitchd.pid")))))))
	must.Succeed(t, syscall.Kill(pid, syscall.SIGSTOP))
	defer func() { must.Succeed(t, syscall.Kill(pid, syscall.SIGCONT)) }()
	var f families
	supervisortest.Eventually(t, "ovs-vswitchd is down", func() error { // a collection serves all scrapes of a second
		if f = metricsOfNode(t, o); f.value(t, "kube_ovn_ovs_status", "component=ovs-vswitchd") != 0 {
			return errors.New("ovs-vswitchd answers")
		}
		return nil
	})
	for _, other := range []string{"ovsdb-server", "ovn-controller"} {
		if f.value(t, "kube_ovn_ovs_status", "component="+other) != 1 {
			t.Errorf("%s is down as well", other)
		}
	}
	if f.value(t, "kiln_ovn_controller_connected") != 1 {
		t.Error("ovn-controller is not connected")
	}
	if len(f["kube_ovn_interface_mtu"].GetMetric()) == 0 || len(f["kube_ovn_dp_total"].GetMetric()) > 0 {
		t.Errorf("interfaces %v, datapaths %v", f["kube_ovn_interface_mtu"], f["kube_ovn_dp_total"])
	}
}

func readMetrics(t *testing.T, c central, port uint16) families {
	t.Helper()
	body := must.Value(c.clientOf(t, adminapi.MonitorName, port).Metrics(t.Context()))
	defer body.Close()
	return parseMetrics(t, body)
}

func checkMember(t *testing.T, f families, name string) {
	t.Helper()
	for family, want := range map[string]float64{
		"kube_ovn_ovn_status": 1, "kube_ovn_db_status": 1, "kube_ovn_cluster_enabled": 1, "kube_ovn_cluster_leader_self": 1, "kube_ovn_cluster_vote_self": 1,
		"kube_ovn_cluster_peer_count": 0, "kube_ovn_cluster_log_not_applied": 0, "kube_ovn_cluster_inbound_connections_error_total": 0,
	} {
		if got := f.value(t, family); got != want {
			t.Errorf("%s is %v, want %v", family, got, want)
		}
	}
	f.value(t, "kube_ovn_cluster_role", "db_name="+name, "server_role=leader", "hostname=node-1")
	f.value(t, "kube_ovn_cluster_status", "server_status=cluster member")
	for _, family := range []string{"kube_ovn_cluster_term", "kube_ovn_cluster_election_timer", "kube_ovn_cluster_log_index_start", "kube_ovn_cluster_log_index_next",
		"kube_ovn_cluster_next_index", "kube_ovn_db_file_size_bytes", "kiln_certificate_expiration_timestamp_seconds"} {
		if got := f.value(t, family); got <= 0 {
			t.Errorf("%s is %v", family, got)
		}
	}
	if got := f.value(t, "kiln_ovsdb_usage", "item=sessions"); got < 1 {
		t.Errorf("%v sessions", got)
	}
	if name == "OVN_Southbound" {
		f.value(t, "kube_ovn_chassis_info", "name=node-1", "ip=192.0.2.1")
		if got := f.value(t, "kube_ovn_logical_switch_tunnel_key", "logical_switch_name=red"); got < 1 {
			t.Errorf("the tunnel key is %v", got)
		}
		return
	}
	f.value(t, "kube_ovn_logical_switch_info", "name=red")
	if got := f.value(t, "kube_ovn_logical_switch_ports_num", "logical_switch_name=red"); got != 2 {
		t.Errorf("%v ports", got)
	}
}

func checkNorthd(t *testing.T, f families) {
	t.Helper()
	if got := f.value(t, "kube_ovn_ovn_status", "component=ovn-northd", "hostname=node-1"); got != 1 {
		t.Errorf("the status is %v", got)
	}
	for _, database := range []string{"northbound", "southbound"} {
		if got := f.value(t, "kiln_northd_connected", "database="+database); got != 1 {
			t.Errorf("connected to %s: %v", database, got)
		}
	}
	if got := f.value(t, "kiln_northd_stopwatch_samples_total", "stopwatch=ovn-northd-loop"); got < 1 {
		t.Errorf("%v iterations", got)
	}
	f.value(t, "kiln_northd_stopwatch_milliseconds", "stopwatch=ovn-northd-loop", "statistic=max")
	if got := f.value(t, "kiln_northd_engine_runs_total", "node=northd", "kind=recompute"); got < 1 {
		t.Errorf("%v computations of northd", got)
	}
}

// checkBusyNorthd stops ovn-northd, which then answers as little as during an iteration.
func checkBusyNorthd(t *testing.T, c central) {
	t.Helper()
	connection := must.Value(net.Dial("unix", filepath.Join(filepath.Dir(c.southbound), "ovn-northd.ctl")))
	var peer *syscall.Ucred
	must.Succeed(t, must.Value(connection.(*net.UnixConn).SyscallConn()).Control(func(fd uintptr) {
		peer = must.Value(syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED))
	}))
	must.Succeed(t, connection.Close())
	must.Succeed(t, syscall.Kill(int(peer.Pid), syscall.SIGSTOP))
	f := readMetrics(t, c, adminapi.PortNorthd)
	for len(f["kube_ovn_ovn_status"].GetMetric()) > 0 { // a collection serves all requests of a second
		f = readMetrics(t, c, adminapi.PortNorthd)
	}
	must.Succeed(t, syscall.Kill(int(peer.Pid), syscall.SIGCONT))
	if len(f["kiln_northd_connected"].GetMetric()) > 0 {
		t.Errorf("it is connected to databases: %v", f["kiln_northd_connected"])
	}
	supervisortest.Eventually(t, "the time of the answer is exported", func() error {
		histogram := readMetrics(t, c, adminapi.PortNorthd)["kiln_northd_answer_seconds"].GetMetric()
		if len(histogram) != 1 || histogram[0].GetHistogram().GetSampleSum() < 1 { // it was stopped for a collection of 4 s, and is queried every 2 s
			return fmt.Errorf("the histogram is %v", histogram)
		}
		return nil
	})
}

func checkNode(t *testing.T, f families) {
	t.Helper()
	for _, daemon := range []string{"ovsdb-server", "ovs-vswitchd", "ovn-controller"} {
		if got := f.value(t, "kube_ovn_ovs_status", "component="+daemon); got != 1 {
			t.Errorf("the status of %s is %v", daemon, got)
		}
	}
	f.value(t, "kube_ovn_ovs_info", "system_id=node-1", "hostname=node-1")
	for _, label := range f["kube_ovn_ovs_info"].GetMetric()[0].Label {
		if n, v := label.GetName(), label.GetValue(); n == "ovs_version" && !strings.HasPrefix(v, "3.5") || n == "db_version" && v == "" {
			t.Errorf("%s is %q", n, v)
		}
	}
	if got := f.value(t, "kiln_ovn_controller_dropped_packets_total", "vpc=red", "kind=neighbors", "hostname=node-1"); got < 1 {
		t.Errorf("%v packets were dropped", got)
	}
	if got := f.value(t, "kiln_ovn_controller_connected"); got != 1 {
		t.Errorf("ovn-controller is connected: %v", got)
	}
	const datapath = "datapath=ovs-netdev"
	f.value(t, "kube_ovn_datapath", datapath, "type=netdev")
	for family, least := range map[string]float64{
		"kube_ovn_dp_if_total": 4, "kube_ovn_dp_flows_total": 0, "kube_ovn_dp_flows_lookup_hit": 0, "kube_ovn_dp_flows_lookup_missed": 0,
		"kube_ovn_dp_flows_lookup_lost": 0, "kiln_datapath_conntrack_entries": 0, "kiln_datapath_conntrack_limit": 1000,
	} {
		if got := f.value(t, family, datapath); got < least {
			t.Errorf("%s is %v", family, got)
		}
	}
	if got := f.value(t, "kube_ovn_dp_total"); got != 1 {
		t.Errorf("%v datapaths", got)
	}
	if got := f.value(t, "kube_ovn_interface_mtu", "interfaceName=br-int"); got < 1000 {
		t.Errorf("the MTU is %v", got)
	}
	f.value(t, "kube_ovn_interface_link_state", "interfaceName=br-phy")
	f.value(t, "kube_ovn_db_file_size_bytes", "db_name=Open_vSwitch")
	f.value(t, "kiln_certificate_expiration_timestamp_seconds", "certificate=chassis")
	for _, m := range f["kube_ovn_interface"].GetMetric() {
		if strings.Contains(m.String(), "pod-a") {
			t.Errorf("a pod has a series: %s", m)
		}
	}
	if len(f["go_goroutines"].GetMetric()) != 1 || len(f["process_resident_memory_bytes"].GetMetric()) != 1 {
		t.Error("the figures of Go and of the process are absent")
	}
}
