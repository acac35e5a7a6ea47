// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routergateway

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// portNodes is exported for each external subnet that a VPC requests.
var portNodes = portNodeCounts{
	GaugeVec: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_external_port_nodes", Help: "Nodes that can host the port of a VPC's router in an external subnet.",
	}, []string{"vpc", "subnet_name"}),
	subnets: map[string][]string{},
}

func init() { metrics.Registry.MustRegister(portNodes.GaugeVec) }

type portNodeCounts struct {
	*prometheus.GaugeVec

	mu      sync.Mutex
	subnets map[string][]string // with a series, by VPC
}

// measure exports the connections of a VPC. It deletes the series of other subnets.
func (p *portNodeCounts) measure(vpc string, connections []connection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var subnets []string
	for _, c := range connections {
		subnets = append(subnets, c.subnet)
		p.WithLabelValues(vpc, c.subnet).Set(float64(c.nodes))
	}
	for _, subnet := range p.subnets[vpc] {
		if !slices.Contains(subnets, subnet) {
			p.DeleteLabelValues(vpc, subnet)
		}
	}
	if p.subnets[vpc] = subnets; len(subnets) == 0 {
		delete(p.subnets, vpc)
	}
}
