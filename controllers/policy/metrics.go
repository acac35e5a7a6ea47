// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// measured is the reconciler of the running process.
var measured atomic.Pointer[Reconciler]

var (
	descSets        = prometheus.NewDesc("kiln_policy_sets", "Sets of pods that policies share.", nil, nil)
	descMemberships = prometheus.NewDesc("kiln_policy_memberships", "Pods in the sets of policies, a pod counted in each.", nil, nil)
	descGrouped     = prometheus.NewDesc("kiln_security_group_pods", "Pods that name security groups.", nil, nil)
	descRefused     = prometheus.NewDesc("kiln_policy_refused", "NetworkPolicies whose rules are left out since they exceed the bound of their namespace.", nil, nil)
	descUsers       = prometheus.NewDesc("kiln_policy_users", "Policies that use sets of pods.", nil, nil)
)

func init() { metrics.Registry.MustRegister(collector{}) }

// collector reports the sizes of the index.
type collector struct{}

// Describe implements prometheus.Collector.
func (collector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{descSets, descMemberships, descUsers, descGrouped, descRefused} {
		descs <- desc
	}
}

// Collect implements prometheus.Collector.
func (collector) Collect(out chan<- prometheus.Metric) {
	r := measured.Load()
	if r == nil {
		return
	}
	stats := r.Sets.Stats()
	for desc, n := range map[*prometheus.Desc]int{
		descSets: stats.Sets, descMemberships: stats.Members, descUsers: stats.Users, descGrouped: stats.Grouped,
		descRefused: r.budget.Refused(),
	} {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n))
	}
}
