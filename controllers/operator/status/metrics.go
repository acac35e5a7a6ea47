// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
)

var (
	componentPods = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_component_pods", Help: "Pods of a component: desired, ready, and updated to the newest image and settings.",
	}, []string{"component", "state"})
	componentVersionPods = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_component_version_pods", Help: "Ready pods of a component, by the versions that they report.",
	}, []string{"component", "kiln", "ovn", "open_vswitch"})
	upgradeUnderWay = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_upgrade_info", Help: "1 while pods have to be replaced, by stage, direction and state (goes on, held, stopped).",
	}, []string{"stage", "direction", "state"})
	clusterCondition = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "kiln_ovncluster_condition", Help: "1 for the present status and reason of each condition of the OVNCluster.",
	}, []string{"type", "status", "reason"})
)

func init() {
	metrics.Registry.MustRegister(componentPods, componentVersionPods, upgradeUnderWay, clusterCondition)
}

// measure exports the component rows and the upgrade as metrics.
func measure(p rollout.Plan, rows []v1alpha1.ComponentStatus) {
	componentVersionPods.Reset()
	for _, row := range rows {
		for _, v := range row.Versions {
			componentVersionPods.WithLabelValues(row.Name, v.Kiln, v.OVN, v.OpenVSwitch).Set(float64(v.Pods))
		}
		for state, count := range map[string]int32{"desired": row.Desired, "ready": row.Ready, "updated": row.Updated} {
			componentPods.WithLabelValues(row.Name, state).Set(float64(count))
		}
	}
	upgradeUnderWay.Reset()
	if p.Stage != "" {
		upgradeUnderWay.WithLabelValues(string(p.Stage), p.Direction(), planState(p)).Set(1)
	}
}

// measureConditions exports the conditions of the OVNCluster.
func measureConditions(conditions []metav1.Condition) {
	clusterCondition.Reset()
	for _, c := range conditions {
		clusterCondition.WithLabelValues(c.Type, string(c.Status), c.Reason).Set(1)
	}
}

// planState returns the value of the label state.
func planState(p rollout.Plan) string {
	switch {
	case p.Stuck:
		return "stopped"
	case p.Held:
		return "held"
	}
	return "going"
}
