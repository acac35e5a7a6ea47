// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Legs of the pod path, each measured from when the controller first asked for the pod's address.
const (
	legAllocated = "allocated" // the address is chosen
	legCommitted = "committed" // the port is in the northbound database
	legPatched   = "patched"   // the pod says so
)

var legs = prometheus.NewHistogramVec(prometheus.HistogramOpts{
	Name:    "kiln_pod_network_seconds",
	Help:    "Time from the controller's first sight of a pod until its address is allocated, its port committed, and the pod patched.",
	Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16),
}, []string{"leg"})

func init() { metrics.Registry.MustRegister(legs) }

// observe measures a leg of a pod's first pass; what follows, such as a new gateway of its subnet, is none.
func (r *Reconciler) observe(pod *corev1.Pod, leg string) {
	if seen, ok := r.ledger.since(pod); ok {
		legs.WithLabelValues(leg).Observe(time.Since(seen).Seconds())
	}
}
