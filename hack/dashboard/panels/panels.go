// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package panels has the dashboards: the overview of a cluster that is part of Kiln, and the metrics of Kube-OVN's dashboards, with which they
// are tested.
package panels

import "strings"

// Dashboard is a page of panels.
type Dashboard struct {
	Name, Title string
	Panels      []Panel
}

// Panel is a diagram.
type Panel struct {
	Title string
	// Unit is Grafana's: short, s, ms, bytes, Bps, pps, percentunit, dtdurations.
	Unit    string
	Queries []Query
	// Empty is the reason why the panel may have no data in a healthy cluster.
	Empty string
}

// Query is an expression whose series have a name with labels in double braces.
type Query struct{ Expr, Legend string }

// rateInterval is Grafana's variable for the range of a rate.
const rateInterval = "$__rate_interval"

// For returns the expression with a range of a rate, such as 1m.
func (q Query) For(interval string) string { return strings.ReplaceAll(q.Expr, rateInterval, interval) }

// Overview is the dashboard of a cluster: a list of data in the order of the page, which parts would only hide. Open vSwitch updates the counters of interfaces once a minute, so their rates have a range of 5 minutes.
var Overview = Dashboard{Name: "kiln-overview", Title: "Kiln / Overview", Panels: []Panel{
	one("Conditions of the OVNCluster that are True", "short", `max by (type) (kiln_ovncluster_condition{status="True"})`, "{{type}}"),
	{
		Title: "Pods that are not ready", Unit: "short",
		Queries: []Query{{`max by (component) (kiln_component_pods{state="desired"}) - max by (component) (kiln_component_pods{state="ready"})`, "{{component}}"}},
	},
	{
		Title: "Objects that are not Ready", Unit: "short", Queries: []Query{{`sum by (kind) (kiln_objects{condition="Ready", status="False"})`, "{{kind}}"}},
		Empty: "all objects are Ready",
	},
	{
		Title: "Time until a new pod has its network", Unit: "s", Queries: []Query{
			{`histogram_quantile(0.5, sum by (le) (rate(kiln_pod_network_seconds_bucket[$__rate_interval])))`, "median"},
			{`histogram_quantile(0.95, sum by (le) (rate(kiln_pod_network_seconds_bucket[$__rate_interval])))`, "95 %"},
		},
	},
	one("CNI requests, 95 %", "s", `histogram_quantile(0.95, sum by (le, method) (rate(cni_op_latency_seconds_bucket[$__rate_interval])))`, "{{method}}"),
	one("Requests to databases, 95 %", "ms", `histogram_quantile(0.95, sum by (le, job, db) (rate(ovs_client_request_latency_milliseconds_bucket[$__rate_interval])))`, "{{job}} to {{db}}"),
	one("Requests to the API server, 95 %", "s", `histogram_quantile(0.95, sum by (le, job) (rate(rest_client_request_latency_seconds_bucket{job=~"kiln-operator|kube-ovn-.*"}[$__rate_interval])))`, "{{job}}"),
	one("Since the last write to the northbound database", "s", `time() - max(kiln_northbound_last_commit_timestamp_seconds)`, "kube-ovn-controller"),
	one("Work queues of kube-ovn-controller", "short", `sum by (name) (workqueue_depth{job="kube-ovn-controller"}) > 0 or topk(1, sum by (name) (workqueue_depth{job="kube-ovn-controller"}))`, "{{name}}"),
	one("Iteration of ovn-northd", "ms", `max by (statistic) (kiln_northd_stopwatch_milliseconds{stopwatch="ovn-northd-loop", statistic=~"p95|short_term_average"})`, "{{statistic}}"),
	one("Iteration of ovn-controller, 95 %", "ms", `max by (hostname) (kiln_ovn_controller_stopwatch_milliseconds{statistic="p95"})`, "{{hostname}}"),
	one("Databases, ovn-northd: 1 leads, 2 follows, 0 is down", "short", `max by (component, hostname) (kube_ovn_ovn_status)`, "{{component}} on {{hostname}}"),
	one("Files of the databases of OVN", "bytes", `max by (db_name) (kube_ovn_db_file_size_bytes{db_name!="Open_vSwitch"})`, "{{db_name}}"),
	one("Used addresses of subnets", "percentunit", `topk(10, max by (subnet_name) (subnet_used_ip_count / (subnet_used_ip_count + subnet_available_ip_count)))`, "{{subnet_name}}"),
	one("Ports of switches", "short", `topk(10, max by (subnet_name) (kiln_subnet_ports))`, "{{subnet_name}}"),
	one("Ports of pods that are missing", "short", `sum by (node_name) (kiln_pod_ports_missing)`, "{{node_name}}"),
	one("Daemons of nodes that do not answer", "short", `sum by (component) (kube_ovn_ovs_status == bool 0)`, "{{component}}"),
	one("Nodes without a connection to the southbound database", "short", `sum(kiln_ovn_controller_connected == bool 0)`, "nodes"),
	one("Flows of datapaths", "short", `sum by (hostname) (kube_ovn_dp_flows_total)`, "{{hostname}}"),
	{
		Title: "Packets of datapaths", Unit: "pps", Queries: []Query{
			{`sum(rate(kube_ovn_dp_flows_lookup_hit[$__rate_interval]))`, "with a flow"}, {`sum(rate(kube_ovn_dp_flows_lookup_missed[$__rate_interval]))`, "without a flow"},
			{`sum(rate(kube_ovn_dp_flows_lookup_lost[$__rate_interval]))`, "lost"},
		},
	},
	{
		Title: "Traffic of pods", Unit: "Bps", Queries: []Query{
			{`sum by (hostname) (rate(kube_ovn_interface_rx_bytes{interfaceName="pods"}[5m]))`, "from pods of {{hostname}}"},
			{`sum by (hostname) (rate(kube_ovn_interface_tx_bytes{interfaceName="pods"}[5m]))`, "to pods of {{hostname}}"},
		},
	},
	one("Dropped packets of interfaces", "pps", `sum by (hostname) (rate(kube_ovn_interface_rx_dropped[5m]) + rate(kube_ovn_interface_tx_dropped[5m]))`, "{{hostname}}"),
	{
		Title: "Packets beyond the limits of VPCs", Unit: "pps",
		Queries: []Query{{`sum by (vpc, kind) (rate(kiln_ovn_controller_dropped_packets_total[5m]))`, "{{kind}} of {{vpc}}"}},
		Empty:   "no VPC exceeds a limit",
	},
	{
		Title: "Tracked connections", Unit: "percentunit", Queries: []Query{
			{`kiln_conntrack_entries / (kiln_conntrack_limit > 0)`, "kernel of {{instance}}"},
			{`kiln_datapath_conntrack_entries / (kiln_datapath_conntrack_limit > 0)`, "userspace datapath of {{hostname}}"},
		},
	},
	{
		Title: "Round trip between pods, 95 %", Unit: "ms",
		Queries: []Query{{`histogram_quantile(0.95, sum by (le, src_node_name) (rate(pinger_pod_ping_latency_ms_bucket[$__rate_interval])))`, "from {{src_node_name}}"}},
		Empty:   "kube-ovn-pinger is disabled",
	},
	{
		Title: "Lost packets of kube-ovn-pinger", Unit: "pps",
		Queries: []Query{
			{`sum by (src_node_name) (rate(pinger_pod_ping_lost_total[$__rate_interval]))`, "{{src_node_name}} to pods"},
			{`sum by (src_node_name) (rate(pinger_node_ping_lost_total[$__rate_interval]))`, "{{src_node_name}} to nodes"},
		},
		Empty: "kube-ovn-pinger is disabled",
	},
	one("Memory of a process, the largest", "bytes", `max by (job) (process_resident_memory_bytes{job=~"kiln-operator|kube-ovn-.*|ovs-ovn"})`, "{{job}}"),
	one("CPUs that a process uses, the most", "short", `max by (job) (rate(process_cpu_seconds_total{job=~"kiln-operator|kube-ovn-.*|ovs-ovn"}[$__rate_interval]))`, "{{job}}"),
	{
		Title: "Errors in logs", Unit: "short", Queries: []Query{{`sum by (job) (rate(klog_lines_total{level="ERROR"}[$__rate_interval]))`, "{{job}}"}},
		Empty: "no process has logged an error",
	},
	one("Time until certificates expire", "dtdurations", `min by (certificate) (kiln_certificate_expiration_timestamp_seconds) - time()`, "{{certificate}}"),
	{
		Title: "Age of the newest backup", Unit: "dtdurations",
		Queries: []Query{{`time() - max by (database, on) (kiln_database_last_backup_timestamp_seconds)`, "{{database}} on a {{on}}"}},
		Empty:   "the first backup is not made yet",
	},
}}

func one(title, unit, expr, legend string) Panel {
	return Panel{Title: title, Unit: unit, Queries: []Query{{expr, legend}}}
}
