// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"context"
	"sync"
	"time"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
)

var (
	operationsPerTransaction = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "kiln_northbound_transaction_operations",
		Help:    "Operations in one transaction.",
		Buckets: prometheus.ExponentialBuckets(2, 2, 12),
	})
	ownersPerTransaction = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "kiln_northbound_transaction_owners",
		Help:    "Owners whose rows one transaction changed.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 9),
	})
	gathering = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "kiln_northbound_gather_seconds",
		Help:    "Time that a transaction waited for more owners to share it.",
		Buckets: append([]float64{0}, prometheus.ExponentialBuckets(0.001, 2, 7)...),
	})
	waitingOwners = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kiln_northbound_waiting_owners",
		Help: "Owners that wait for a row of another owner.",
	})
	refusedOwners = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kiln_northbound_refused_owners",
		Help: "Owners whose rows the northbound database, or the engine, refused when they were last written.",
	})
	lastCommit = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kiln_northbound_last_commit_timestamp_seconds",
		Help: "When the northbound database last committed a transaction of this process. A leader has one at least every 30 s.",
	})
)

// exportMetrics registers the metrics of this package when a process has an engine. Other processes of the program do not export them.
var exportMetrics = sync.OnceFunc(func() {
	metrics.Registry.MustRegister(operationsPerTransaction, ownersPerTransaction, gathering, waitingOwners, refusedOwners, lastCommit)
})

// send sends a transaction and measures it.
func (e *Engine) send(ctx context.Context, method string, operations []ovsdb.Operation) ([]ovsdbclient.Result, error) {
	start := time.Now()
	results, err := e.session.Transact(ctx, operations)
	ovsdbclient.Observe("ovn-nb", method, err == nil && failed(operations, results) == nil, time.Since(start))
	operationsPerTransaction.Observe(float64(len(operations)))
	return results, err
}
