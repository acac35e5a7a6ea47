// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/reconciler"
)

var (
	// Name and labels match the metric of Kube-OVN.
	info = reconciler.NewSeries(prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "centralized_subnet_info", Help: "Gateway of a subnet with a centralized gateway; 1 while a node carries its traffic.",
	}, []string{"subnet_name", "enable_ecmp", "gateway_node", "active_gateway", "match", "nexthops"}))
	failovers = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "kiln_gateway_failovers_total", Help: "Failovers: how often the traffic of a subnet moved away from a gateway node that stopped serving.",
	}, []string{"subnet_name"})
)

func init() { metrics.Registry.MustRegister(failovers) }

// measure exports the gateway of a subnet. Its counter begins with 0, so that Prometheus sees the first failover as an increase.
func measure(in inputs, hops []netip.Addr) {
	failovers.WithLabelValues(in.subnet.Name)
	value := 0.0
	if len(hops) > 0 {
		value = 1
	}
	info.Set([]string{
		in.subnet.Name, strconv.FormatBool(in.spec.ECMP), in.valid.Spec.GatewayNode, strings.Join(in.selected, ","),
		ipfamily.Join(in.cidrs), ipfamily.Join(hops),
	}, value)
}

// unmeasure deletes the series of a subnet.
func unmeasure(subnet string) {
	info.Delete(subnet)
	failovers.DeleteLabelValues(subnet)
}
