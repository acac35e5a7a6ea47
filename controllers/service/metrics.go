// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package service

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/internal/serving/budget"
)

// measured is the budget of the running process.
var measured atomic.Pointer[budget.Budget]

var refusedServices = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
	Name: "kiln_controller_services_refused", Help: "Services that are not served since they exceed a bound.",
}, func() float64 {
	if b := measured.Load(); b != nil {
		return float64(b.Refused())
	}
	return 0
})

// exportMetrics registers the metrics of this package when a process runs the controller of Services. Other processes of the program do not export them.
var exportMetrics = sync.OnceFunc(func() {
	metrics.Registry.MustRegister(refusedServices)
})
