// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// collectTimeout bounds one collection. It is shorter than the usual timeout of a scrape, 10 s, so that a daemon in a long computation
	// costs its own figures only.
	collectTimeout = 4 * time.Second
	// collectInterval is the age up to which figures are served again. The load on the daemons does not depend on the number of requests.
	collectInterval = time.Second
)

// Figures receives the metrics of one collection.
type Figures struct{ metrics []prometheus.Metric }

// Gauge adds a value that can go up and down.
func (f *Figures) Gauge(desc *prometheus.Desc, value float64, labels ...string) {
	f.metrics = append(f.metrics, prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...))
}

// Counter adds a value that a daemon counts from its start.
func (f *Figures) Counter(desc *prometheus.Desc, value float64, labels ...string) {
	f.metrics = append(f.metrics, prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, labels...))
}

// Present adds 1 if is, otherwise 0.
func (f *Figures) Present(desc *prometheus.Desc, is bool, labels ...string) {
	value := 0.0
	if is {
		value = 1
	}
	f.Gauge(desc, value, labels...)
}

// collector queries daemons when metrics are requested.
type collector struct {
	collect func(context.Context, *Figures)

	mu      sync.Mutex
	at      time.Time
	figures Figures
}

// NewCollector returns a collector that calls collect for a request, at most once per collectInterval. The context ends after
// collectTimeout; collect then returns with the figures that it has.
func NewCollector(collect func(context.Context, *Figures)) prometheus.Collector {
	return &collector{collect: collect}
}

// Describe implements prometheus.Collector. It sends nothing: the series depend on what daemons report.
func (*collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) > collectInterval {
		ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
		defer cancel()
		c.figures = Figures{}
		c.collect(ctx, &c.figures)
		c.at = time.Now()
	}
	for _, m := range c.figures.metrics {
		to <- m
	}
}

// MetricsHandler serves the metrics of collectors. A metric that is invalid is left out.
func MetricsHandler(collectors ...prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors...)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}
