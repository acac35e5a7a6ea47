// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kiln-net/kiln/internal/reconciler"
)

var ignoredAddresses = reconciler.NewSeries(prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "kiln_node_ignored_addresses",
	Help: "Addresses in the status of a node that pods, OVN and other nodes do not use (event AddressIgnored).",
}, []string{"node"}))
