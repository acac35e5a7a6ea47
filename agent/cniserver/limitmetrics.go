// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kiln-net/kiln/agent/ovs"
	"github.com/kiln-net/kiln/agent/sandbox"
)

// topLimited is the number of pods with series of their own, in each direction: those whose limits have dropped most since the last request. limitsTimeout bounds the reads for one request of metrics.
const (
	topLimited    = 5
	limitsTimeout = 2 * time.Second
)

var (
	limitedDesc = prometheus.NewDesc("kiln_limited_ports", "Ports of pods whose rate is limited, or whose packets are delayed, by direction as the pod sees it.",
		[]string{"node_name", "direction"}, nil)
	limitDroppedDesc = prometheus.NewDesc("kiln_limit_dropped_packets_total", "Packets that limits of pods have dropped, by direction as the pod sees it.",
		[]string{"node_name", "direction"}, nil)
	limitDelayedDesc = prometheus.NewDesc("kiln_limit_delayed_packets_total", "Times that a limit let a packet to a pod wait.",
		[]string{"node_name", "direction"}, nil)
	limitTopDesc = prometheus.NewDesc("kiln_limit_top_dropped_packets_total", "Packets that a limit of a pod has dropped, for the five pods of the node with most of them since the last scrape, in each direction.",
		[]string{"node_name", "direction", "pod_namespace", "pod_name"}, nil)
)

// Directions of traffic, as the pod sees it.
const (
	toPod   = "ingress"
	fromPod = "egress"
)

// limitCounter counts what limits drop and delay when metrics are requested. The kernel counts for each interface; the sums also have the counts of interfaces
// that were deleted since the last request.
type limitCounter struct {
	node    string
	limited func(context.Context) ([]ovs.LimitedPort, error)
	shaped  func() (map[string]sandbox.Shaping, error)

	mu      sync.Mutex
	last    map[string]sandbox.Shaping
	dropped map[string]float64 // by direction
	delayed float64
}

// Describe implements prometheus.Collector.
func (c *limitCounter) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{limitedDesc, limitDroppedDesc, limitDelayedDesc, limitTopDesc} {
		to <- desc
	}
}

// Collect implements prometheus.Collector. It reads the kernel only if a pod has a limit.
func (c *limitCounter) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), limitsTimeout)
	defer cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	ports, err := c.limited(ctx)
	var shaped map[string]sandbox.Shaping
	if err == nil && len(ports) > 0 {
		shaped, err = c.shaped()
	}
	if err != nil {
		return
	}
	numbers := map[string]int{toPod: 0, fromPod: 0}
	top := map[string][]limitedPod{}
	next := map[string]sandbox.Shaping{}
	if c.dropped == nil {
		c.dropped = map[string]float64{}
	}
	for _, port := range ports {
		now, was := shaped[port.Name], c.last[port.Name]
		next[port.Name] = now
		if port.Qdisc != "" {
			numbers[toPod]++
			c.dropped[toPod] += since(was.ToDropped, now.ToDropped)
			c.delayed += since(was.ToDelayed, now.ToDelayed)
			top[toPod] = append(top[toPod], limitedPod{port.PodNamespace, port.PodName, now.ToDropped, since(was.ToDropped, now.ToDropped)})
		}
		if port.Policed {
			numbers[fromPod]++
			c.dropped[fromPod] += since(was.FromDropped, now.FromDropped)
			top[fromPod] = append(top[fromPod], limitedPod{port.PodNamespace, port.PodName, now.FromDropped, since(was.FromDropped, now.FromDropped)})
		}
	}
	c.last = next
	for direction, number := range numbers {
		to <- prometheus.MustNewConstMetric(limitedDesc, prometheus.GaugeValue, float64(number), c.node, direction)
		to <- prometheus.MustNewConstMetric(limitDroppedDesc, prometheus.CounterValue, c.dropped[direction], c.node, direction)
		for _, pod := range most(top[direction]) {
			to <- prometheus.MustNewConstMetric(limitTopDesc, prometheus.CounterValue, float64(pod.dropped), c.node, direction, pod.namespace, pod.name)
		}
	}
	to <- prometheus.MustNewConstMetric(limitDelayedDesc, prometheus.CounterValue, c.delayed, c.node, toPod)
}

type limitedPod struct {
	namespace, name string
	dropped         uint32
	growth          float64 // of dropped, since the last request
}

// most returns the pods whose limits drop most packets at present, one entry for each pod, without those that lost none. Totals since the pod's start decide
// between others only: they would hide the present drops of younger pods.
func most(pods []limitedPod) []limitedPod {
	slices.SortFunc(pods, func(a, b limitedPod) int {
		return cmp.Or(cmp.Compare(b.growth, a.growth), cmp.Compare(b.dropped, a.dropped), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
	})
	var kept []limitedPod
	for _, pod := range pods {
		another := slices.ContainsFunc(kept, func(k limitedPod) bool { return k.namespace == pod.namespace && k.name == pod.name })
		if len(kept) < topLimited && pod.dropped > 0 && !another {
			kept = append(kept, pod)
		}
	}
	return kept
}

// since returns how much a count of 32 bits has grown. A smaller value is of a new limit.
func since(was, now uint32) float64 {
	if now < was {
		return float64(now)
	}
	return float64(now - was)
}
