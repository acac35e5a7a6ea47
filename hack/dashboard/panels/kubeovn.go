// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package panels

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Use is a metric of a dashboard of Kube-OVN with the labels by which the dashboard selects or groups its series.
type Use struct {
	Metric string
	Labels []string
	// Jobs are the values of the label job that the dashboard selects; none if it does not.
	Jobs []string
}

// Expr returns an expression whose result has a series for each combination of the labels.
func (u Use) Expr() string {
	selector := ""
	if len(u.Jobs) > 0 {
		selector = fmt.Sprintf(`{job=~%q}`, strings.Join(u.Jobs, "|"))
	}
	value := u.Metric + selector
	for _, counter := range []string{"_total", "_count", "_sum", "_bucket"} {
		// kube_ovn_dp_flows_total and kube_ovn_dp_if_total are gauges, of which a rate can be computed as well.
		if strings.HasSuffix(u.Metric, counter) && !strings.HasPrefix(u.Metric, "kube_ovn_dp_") {
			value = fmt.Sprintf("rate(%s[%s])", value, rateInterval)
		}
	}
	return fmt.Sprintf("sum by (%s) (%s)", strings.Join(u.Labels, ", "), value)
}

// KubeOVN has the metrics of Kube-OVN's five dashboards, by the name of the dashboard. They are names only; the expressions are ours.
var KubeOVN = map[string][]Use{
	"cni": append(process("kube-ovn-cni", "go_goroutines", "process_cpu_seconds_total", "process_resident_memory_bytes"),
		Use{"cni_op_latency_seconds_count", []string{"instance", "job", "method", "status_code"}, []string{"kube-ovn-cni"}},
		Use{"cni_op_latency_seconds_sum", []string{"instance"}, nil},
		Use{"klog_lines_total", []string{"instance", "job", "level"}, []string{"kube-ovn-cni"}},
		Use{"ovs_client_request_latency_milliseconds_count", []string{"code", "instance", "job"}, []string{"kube-ovn-cni"}},
		Use{"ovs_client_request_latency_milliseconds_sum", []string{"code", "instance", "job"}, []string{"kube-ovn-cni"}},
		Use{"rest_client_request_latency_seconds_count", []string{"instance", "job"}, []string{"kube-ovn-cni"}},
		Use{"rest_client_request_latency_seconds_sum", []string{"instance", "job"}, []string{"kube-ovn-cni"}},
	),
	"controller": append(process("kube-ovn-controller", "go_goroutines", "process_cpu_seconds_total", "process_resident_memory_bytes", "workqueue_depth"),
		Use{"klog_lines_total", []string{"instance", "job", "level"}, []string{"kube-ovn-controller"}},
		Use{"ovs_client_request_latency_milliseconds_count", []string{"code", "db", "instance", "job"}, []string{"kube-ovn-controller"}},
		Use{"ovs_client_request_latency_milliseconds_sum", []string{"code", "db", "instance", "job"}, []string{"kube-ovn-controller"}},
		Use{"rest_client_request_latency_seconds_bucket", []string{"instance", "job", "url", "verb"}, []string{"kube-ovn-controller"}},
		Use{"rest_client_requests_total", []string{"code", "instance", "job"}, []string{"kube-ovn-controller"}},
		Use{"workqueue_adds_total", []string{"instance", "job", "name"}, []string{"kube-ovn-controller"}},
		Use{"workqueue_queue_duration_seconds_count", []string{"instance"}, nil},
		Use{"workqueue_queue_duration_seconds_sum", []string{"instance"}, nil},
		Use{"workqueue_retries_total", []string{"instance", "job", "name"}, []string{"kube-ovn-controller"}},
	),
	"ovn": append(containers(),
		Use{"kube_ovn_chassis_info", []string{"instance"}, nil},
		Use{"kube_ovn_cluster_role", []string{"db_name", "instance", "server_role"}, nil},
		Use{"kube_ovn_db_file_size_bytes", []string{"hostname", "instance"}, nil},
		Use{"kube_ovn_log_file_size_bytes", []string{"hostname", "instance"}, nil},
		Use{"kube_ovn_logical_switch_info", []string{"instance"}, nil},
		Use{"kube_ovn_logical_switch_ports_num", []string{"instance"}, nil},
		Use{"process_cpu_seconds_total", []string{"instance", "job"}, []string{"kube-ovn-monitor"}},
	),
	"ovs": append(containers(),
		Use{"kube_ovn_db_file_size_bytes", []string{"hostname", "instance"}, nil},
		Use{"kube_ovn_dp_flows_lookup_hit", []string{"instance"}, nil},
		Use{"kube_ovn_dp_flows_lookup_missed", []string{"instance"}, nil},
		Use{"kube_ovn_dp_flows_total", []string{"instance"}, nil},
		Use{"kube_ovn_dp_if_total", []string{"instance"}, nil},
		Use{"kube_ovn_interface_rx_bytes", []string{"instance"}, nil},
		Use{"kube_ovn_interface_rx_packets", []string{"instance"}, nil},
		Use{"kube_ovn_interface_tx_bytes", []string{"instance"}, nil},
		Use{"kube_ovn_interface_tx_packets", []string{"instance"}, nil},
		Use{"kube_ovn_log_file_size_bytes", []string{"hostname", "instance"}, nil},
		Use{"kube_ovn_ovs_info", []string{"db_version", "instance", "ovs_version"}, nil},
		Use{"pinger_ovs_down", []string{"instance"}, nil},
		Use{"process_cpu_seconds_total", []string{"instance", "job"}, []string{"kube-ovn-pinger"}},
	),
	"pinger": append(process("kube-ovn-pinger", "go_goroutines", "process_cpu_seconds_total", "process_resident_memory_bytes"),
		Use{"klog_lines_total", []string{"instance", "job", "level"}, []string{"kube-ovn-pinger"}},
		Use{"kube_ovn_dp_flows_total", nil, nil},
		Use{"kube_ovn_interface_mtu", nil, nil},
		Use{"pinger_apiserver_healthy", nil, nil},
		Use{"pinger_apiserver_latency_ms_count", []string{"instance", "nodeName"}, nil},
		Use{"pinger_apiserver_latency_ms_sum", []string{"instance", "nodeName"}, nil},
		Use{"pinger_apiserver_unhealthy", nil, nil},
		Use{"pinger_inconsistent_port_binding", nil, nil},
		Use{"pinger_internal_dns_healthy", nil, nil},
		Use{"pinger_internal_dns_latency_ms_count", []string{"instance", "nodeName"}, nil},
		Use{"pinger_internal_dns_latency_ms_sum", []string{"instance", "nodeName"}, nil},
		Use{"pinger_internal_dns_unhealthy", nil, nil},
		Use{"pinger_node_ping_lost_total", []string{"instance", "src_node_name", "target_node_name"}, nil},
		Use{"pinger_ovn_controller_down", nil, nil},
		Use{"pinger_ovn_controller_up", nil, nil},
		Use{"pinger_ovs_down", nil, nil},
		Use{"pinger_ovs_up", nil, nil},
		Use{"pinger_pod_ping_lost_total", []string{"instance", "src_node_name", "target_node_name"}, nil},
	),
}

func process(job string, metrics ...string) []Use {
	var uses []Use
	for _, m := range metrics {
		uses = append(uses, Use{m, []string{"instance", "job"}, []string{job}})
	}
	return uses
}

func containers() []Use {
	labels := []string{"container", "node", "pod"}
	return []Use{
		{"node_namespace_pod_container:container_cpu_usage_seconds_total:sum_irate", labels, nil},
		{"node_namespace_pod_container:container_memory_working_set_bytes", labels, nil},
	}
}

// KubeOVNDashboards returns a dashboard with a panel for each metric of each dashboard of Kube-OVN.
func KubeOVNDashboards() []Dashboard {
	var all []Dashboard
	for _, name := range slices.Sorted(maps.Keys(KubeOVN)) {
		d := Dashboard{Name: "kube-ovn-" + name, Title: "Metrics of Kube-OVN's dashboard " + name}
		for _, use := range KubeOVN[name] {
			legend := use.Metric
			if len(use.Labels) > 0 {
				legend = "{{" + strings.Join(use.Labels, "}} {{") + "}}"
			}
			d.Panels = append(d.Panels, one(use.Metric, "short", use.Expr(), legend))
		}
		all = append(all, d)
	}
	return all
}
