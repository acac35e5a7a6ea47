// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// endpoints are the metrics of the endpoints of rules, by kind of rule.
var endpoints = map[string]*prometheus.GaugeVec{
	translate.KindSwitchLBRule: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_switch_lb_rule_endpoints", Help: "Endpoints of a SwitchLBRule, by whether OVN checks them.",
	}, []string{"rule", "checked"}),
	translate.KindRouterLBRule: prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_router_lb_rule_endpoints", Help: "Endpoints of a RouterLBRule, by whether OVN checks them.",
	}, []string{"rule", "checked"}),
}

func init() {
	for _, kind := range kinds {
		metrics.Registry.MustRegister(endpoints[kind])
	}
}

func (r *controller) measure(rule string, s *state) {
	total := s.checks.total
	if s.checks.off {
		total = len(s.endpoints())
	}
	endpoints[r.kind].WithLabelValues(rule, "true").Set(float64(s.checks.checked))
	endpoints[r.kind].WithLabelValues(rule, "false").Set(float64(total - s.checks.checked))
}

func (r *controller) unmeasure(rule string) {
	endpoints[r.kind].DeletePartialMatch(prometheus.Labels{"rule": rule})
}
