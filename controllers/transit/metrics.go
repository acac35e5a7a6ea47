// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package transit

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/reconciler"
)

var (
	info = reconciler.NewSeries(prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_vpc_transit_info", Help: "The way from a custom VPC to Services and the outside; 1 while a node that serves carries it.",
	}, []string{"vpc", "node", "standby", "addresses"}))
	failovers = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kiln_vpc_transit_failovers_total", Help: "Failovers: how often the outgoing traffic of a custom VPC moved away from a node that stopped serving.",
	}, []string{"vpc"})
)

func init() { metrics.Registry.MustRegister(failovers) }

// measure exports the gateway router of a VPC. Its counter begins with 0, so that Prometheus sees the first failover as an increase.
func measure(in inputs) {
	failovers.WithLabelValues(in.vpc.Name)
	value := 0.0
	if in.up && in.conflict == "" {
		value = 1
	}
	info.Set([]string{in.vpc.Name, in.pair.Active, in.pair.Standby, ipfamily.Join(in.allocation.Addresses)}, value)
}

// unmeasure deletes the series of a VPC.
func unmeasure(vpc string) {
	info.Delete(vpc)
	failovers.DeleteLabelValues(vpc)
}
