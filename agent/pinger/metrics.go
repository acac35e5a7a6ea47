// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pinger

import (
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Buckets of latencies in milliseconds: of pods and nodes, and of everything else.
var (
	pingBuckets = []float64{.25, .5, 1, 2, 5, 10, 30}
	callBuckets = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000}
)

var (
	ovsUp = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pinger_ovs_up", Help: "1 if ovsdb-server and ovs-vswitchd of the node answer.",
	}, []string{"nodeName"})
	ovsDown = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pinger_ovs_down", Help: "1 if ovsdb-server or ovs-vswitchd of the node does not answer.",
	}, []string{"nodeName"})
	ovnControllerUp = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pinger_ovn_controller_up", Help: "1 if ovn-controller of the node answers.",
	}, []string{"nodeName"})
	ovnControllerDown = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pinger_ovn_controller_down", Help: "1 if ovn-controller of the node does not answer.",
	}, []string{"nodeName"})
	southboundConnected = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_pinger_southbound_connected", Help: "1 if ovn-controller of the node is connected to the southbound database.",
	}, []string{"nodeName"})
	inconsistentPorts = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pinger_inconsistent_port_binding", Help: "Ports of the node that ovn-controller has not bound for 15 s.",
	}, []string{"nodeName"})

	apiserverHealthy = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pinger_apiserver_healthy", Help: "1 if the API server answers a pod of the node.",
	}, []string{"nodeName"})
	apiserverUnhealthy = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pinger_apiserver_unhealthy", Help: "1 if the API server does not answer a pod of the node.",
	}, []string{"nodeName"})
	apiserverLatency = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "pinger_apiserver_latency_ms", Help: "Time of a request to the API server, with its connection.", Buckets: callBuckets,
	}, []string{"nodeName"})

	internalDNSHealthy = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pinger_internal_dns_healthy", Help: "1 if all names of the cluster can be resolved.",
	}, []string{"nodeName"})
	internalDNSUnhealthy = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pinger_internal_dns_unhealthy", Help: "1 if a name of the cluster cannot be resolved.",
	}, []string{"nodeName"})
	internalDNSLatency = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "pinger_internal_dns_latency_ms", Help: "Time to resolve a name of the cluster.", Buckets: callBuckets,
	}, []string{"nodeName"})
	externalDNSHealthy = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pinger_external_dns_healthy", Help: "1 if all external names can be resolved.",
	}, []string{"nodeName"})
	externalDNSUnhealthy = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pinger_external_dns_unhealthy", Help: "1 if an external name cannot be resolved.",
	}, []string{"nodeName"})
	externalDNSLatency = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "pinger_external_dns_latency_ms", Help: "Time to resolve an external name.", Buckets: callBuckets,
	}, []string{"nodeName"})

	podLatency = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "pinger_pod_ping_latency_ms", Help: "Round-trip time to the pod of another node.", Buckets: pingBuckets,
	}, []string{"src_node_name", "src_node_ip", "src_pod_ip", "target_node_name", "target_node_ip", "target_pod_ip"})
	podLost = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pinger_pod_ping_lost_total", Help: "Packets to the pod of another node without a reply.",
	}, []string{"src_node_name", "src_node_ip", "src_pod_ip", "target_node_name", "target_node_ip", "target_pod_ip"})
	podCount = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pinger_pod_ping_count_total", Help: "Packets to the pod of another node.",
	}, []string{"src_node_name", "src_node_ip", "src_pod_ip", "target_node_name", "target_node_ip", "target_pod_ip"})
	nodeLatency = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "pinger_node_ping_latency_ms", Help: "Round-trip time to another node.", Buckets: pingBuckets,
	}, []string{"src_node_name", "src_node_ip", "src_pod_ip", "target_node_name", "target_node_ip"})
	nodeLost = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pinger_node_ping_lost_total", Help: "Packets to another node without a reply.",
	}, []string{"src_node_name", "src_node_ip", "src_pod_ip", "target_node_name", "target_node_ip"})
	nodeCount = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pinger_node_ping_count_total", Help: "Packets to another node.",
	}, []string{"src_node_name", "src_node_ip", "src_pod_ip", "target_node_name", "target_node_ip"})
	externalLatency = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "pinger_external_ping_latency_ms", Help: "Round-trip time to an external address.", Buckets: callBuckets,
	}, []string{"src_node_name", "src_node_ip", "src_pod_ip", "target_address"})
	externalLost = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pinger_external_ping_lost_total", Help: "Packets to an external address without a reply.",
	}, []string{"src_node_name", "src_node_ip", "src_pod_ip", "target_address"})
)

func init() {
	metrics.Registry.MustRegister(
		ovsUp, ovsDown, ovnControllerUp, ovnControllerDown, southboundConnected, inconsistentPorts,
		apiserverHealthy, apiserverUnhealthy, apiserverLatency,
		internalDNSHealthy, internalDNSUnhealthy, internalDNSLatency, externalDNSHealthy, externalDNSUnhealthy, externalDNSLatency,
		podLatency, podLost, podCount, nodeLatency, nodeLost, nodeCount, externalLatency, externalLost,
	)
}

// pair is a gauge that is 1 while a check passes and its opposite.
type pair struct {
	up, down *prometheus.GaugeVec
	latency  *prometheus.HistogramVec
}

// pairs have the series of the checks that have one target, or one series for all of their targets.
var pairs = map[Check]pair{
	CheckOpenVSwitch:   {ovsUp, ovsDown, nil},
	CheckOVNController: {ovnControllerUp, ovnControllerDown, nil},
	CheckSouthbound:    {southboundConnected, nil, nil},
	CheckAPIServer:     {apiserverHealthy, apiserverUnhealthy, apiserverLatency},
	CheckInternalDNS:   {internalDNSHealthy, internalDNSUnhealthy, internalDNSLatency},
	CheckExternalDNS:   {externalDNSHealthy, externalDNSUnhealthy, externalDNSLatency},
}

// record sets the series of the check from the results of one round. Without a result the gauges disappear: nothing is known, or nothing is to
// be checked.
func (p pair) record(node string, results []Result) {
	passed := len(results) > 0
	for _, r := range results {
		passed = passed && r.Err == nil
		if p.latency != nil && r.Err == nil {
			p.latency.WithLabelValues(node).Observe(milliseconds(r.Latency))
		}
	}
	for gauge, value := range map[*prometheus.GaugeVec]bool{p.up: passed, p.down: !passed} {
		switch {
		case gauge == nil:
		case len(results) == 0:
			gauge.DeleteLabelValues(node)
		case value:
			gauge.WithLabelValues(node).Set(1)
		default:
			gauge.WithLabelValues(node).Set(0)
		}
	}
}

// pings are the series of one kind of target; count may be nil.
type pings struct {
	latency     *prometheus.HistogramVec
	lost, count *prometheus.CounterVec
}

var pingSeries = map[Check]pings{
	CheckPod:      {podLatency, podLost, podCount},
	CheckNode:     {nodeLatency, nodeLost, nodeCount},
	CheckExternal: {externalLatency, externalLost, nil},
}

func (p pings) record(labels []string, sent int, replies []time.Duration) {
	for _, r := range replies {
		p.latency.WithLabelValues(labels...).Observe(milliseconds(r))
	}
	p.lost.WithLabelValues(labels...).Add(float64(sent - len(replies)))
	if p.count != nil {
		p.count.WithLabelValues(labels...).Add(float64(sent))
	}
}

func (p pings) forget(labels []string) {
	p.latency.DeleteLabelValues(labels...)
	p.lost.DeleteLabelValues(labels...)
	if p.count != nil {
		p.count.DeleteLabelValues(labels...)
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// text returns the address as a label: empty for the zero Addr.
func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}
