// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	syncSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "kiln_services_sync_seconds",
		Help:    "Time from reading what changed until nftables has it.",
		Buckets: prometheus.ExponentialBuckets(.001, 2, 14),
	})
	syncErrors = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kiln_services_sync_errors_total", Help: "Writes to nftables that failed; each is tried again.",
	})
	elementsWritten = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kiln_services_elements_written_total", Help: "Elements of sets and maps that were added or deleted.",
	})
	servicesServed = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kiln_services_served", Help: "Services that this node serves.",
	})
	servicesRefused = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kiln_services_refused", Help: "Services that this node does not serve since they exceed a bound.",
	})
)

// exportMetrics registers the metrics of this package when a process serves Services. Other processes of the program do not export them.
var exportMetrics = sync.OnceFunc(func() {
	metrics.Registry.MustRegister(syncSeconds, syncErrors, elementsWritten, servicesServed, servicesRefused)
})
