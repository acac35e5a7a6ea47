// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kiln-net/kiln/internal/reconciler"
)

// nodeCounts has the numbers of a ProviderNetwork's nodes.
var nodeCounts = reconciler.NewSeries(
	prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_provider_network_ready_nodes", Help: "Nodes whose bridge of the ProviderNetwork works.",
	}, []string{"provider_network"}),
	prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_provider_network_not_ready_nodes", Help: "Selected nodes without a working bridge of the ProviderNetwork.",
	}, []string{"provider_network"}),
)
