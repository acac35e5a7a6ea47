// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

var (
	poolAddresses = prometheus.NewDesc("kiln_load_balancer_pool_addresses", "Addresses of a pool.", []string{"class", "family"}, nil)
	poolAssigned  = prometheus.NewDesc("kiln_load_balancer_pool_assigned", "Addresses of a pool that Services have.", []string{"class", "family"}, nil)
	poolWaiting   = prometheus.NewDesc("kiln_load_balancer_services_waiting", "Services that wait for an address of a pool.", nil, nil)
)

// measured is the Reconciler of the running process.
var measured atomic.Pointer[Reconciler]

// export exports the metrics of a Reconciler.
func (r *Reconciler) export() {
	measured.Store(r)
	register()
}

var register = sync.OnceFunc(func() { metrics.Registry.MustRegister(collector{}) })

// collector collects the figures of the pools when they are requested.
type collector struct{}

// Describe implements prometheus.Collector.
func (collector) Describe(out chan<- *prometheus.Desc) {
	out <- poolAddresses
	out <- poolAssigned
	out <- poolWaiting
}

// Collect implements prometheus.Collector.
func (collector) Collect(out chan<- prometheus.Metric) {
	r := measured.Load()
	if r == nil {
		return
	}
	pools := r.Pools.all()
	assigned, waiting := r.holders.counts(pools)
	out <- prometheus.MustNewConstMetric(poolWaiting, prometheus.GaugeValue, float64(waiting))
	for _, p := range pools {
		for _, f := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
			labels := []string{p.spec.Class, strings.ToLower(f.String())}
			out <- prometheus.MustNewConstMetric(poolAddresses, prometheus.GaugeValue, ipfamily.Count(p.ranges[f]), labels...)
			out <- prometheus.MustNewConstMetric(poolAssigned, prometheus.GaugeValue, float64(assigned[place{p.spec.Class, f}]), labels...)
		}
	}
}
