// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// latency has Kube-OVN's name and labels.
var latency = prometheus.NewHistogramVec(prometheus.HistogramOpts{
	Name:    "ovs_client_request_latency_milliseconds",
	Help:    "Time from sending a transaction to its reply. code is 0 when it was committed.",
	Buckets: prometheus.ExponentialBuckets(0.25, 2, 16),
}, []string{"db", "method", "code"})

func init() { metrics.Registry.MustRegister(latency) }

// Observe records the duration of a transaction on a database, and whether it was committed.
func Observe(db, method string, committed bool, took time.Duration) {
	code := "1"
	if committed {
		code = "0"
	}
	latency.WithLabelValues(db, method, code).Observe(float64(took) / float64(time.Millisecond))
}
