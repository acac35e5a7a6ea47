// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var endpoints = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "kiln_switch_lb_rule_endpoints", Help: "Endpoints of a SwitchLBRule, by whether OVN checks them.",
}, []string{"rule", "checked"})

func init() { metrics.Registry.MustRegister(endpoints) }

func measure(rule string, s *state) {
	total := s.checks.total
	if s.checks.off {
		total = len(s.endpoints())
	}
	endpoints.WithLabelValues(rule, "true").Set(float64(s.checks.checked))
	endpoints.WithLabelValues(rule, "false").Set(float64(total - s.checks.checked))
}

func unmeasure(rule string) { endpoints.DeletePartialMatch(prometheus.Labels{"rule": rule}) }
