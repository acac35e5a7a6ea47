// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver

import (
	"path"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Metrics under Kube-OVN's names.
var (
	operationSeconds = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "cni_op_latency_seconds",
		Help:    "Duration of CNI operations in the agent, by HTTP status.",
		Buckets: []float64{.005, .01, .02, .03, .05, .075, .1, .15, .2, .3, .5, 1, 2, 5, 10, 30, 60, 120},
	}, []string{"node_name", "method", "status_code"})
	addressSeconds = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cni_wait_address_seconds_total",
		Help: "Time that ADD operations waited for the controller's annotation.",
	}, []string{"node_name"})
	connectivitySeconds = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cni_wait_connectivity_seconds_total",
		Help: "Time that ADD operations waited for ovn-controller to install the port's flows.",
	}, []string{"node_name"})
)

func init() { metrics.Registry.MustRegister(operationSeconds, addressSeconds, connectivitySeconds) }

// observe records an operation; its method is the last element of its path.
func observe(node, operationPath string, code int, took time.Duration) {
	operationSeconds.WithLabelValues(node, path.Base(operationPath), strconv.Itoa(code)).Observe(took.Seconds())
}
