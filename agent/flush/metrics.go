// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package flush

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	flushed = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "kiln_external_releases_total", Help: "Former translations of external addresses whose connections this node has ended.",
	})
	waiting = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kiln_external_releases_waiting", Help: "Former translations of external addresses of which this node still has flows, or whose connections it could not end.",
	})
)

// exportMetrics registers the metrics when an agent starts, because all processes are one program.
var exportMetrics = sync.OnceFunc(func() { metrics.Registry.MustRegister(flushed, waiting) })
