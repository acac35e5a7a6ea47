// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"maps"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
)

// series returns the values of a metric, by its label values in the order of the label names.
func series(t *testing.T, name string) map[string]float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			labels := ""
			for _, l := range m.GetLabel() {
				labels += l.GetValue() + " "
			}
			if family.GetName() == name {
				values[labels] = m.GetGauge().GetValue() + m.GetCounter().GetValue() // one of them is zero
			}
		}
	}
	return values
}

func TestMetricsOfAnUpgrade(t *testing.T) {
	rows := []v1alpha1.ComponentStatus{{Name: "measured", Desired: 3, Ready: 2, Updated: 1}}
	measure(rollout.Plan{Stage: v1alpha1.StageNodes, Stuck: true}, rows)
	measure(rollout.Plan{Stage: v1alpha1.StageNorthd, Back: true, Held: true}, rows)
	if got := series(t, "kiln_upgrade_info"); !maps.Equal(got, map[string]float64{"Back Northd held ": 1}) {
		t.Errorf("upgrade: %v", got)
	}
	pods := series(t, "kiln_component_pods")
	for state, count := range map[string]float64{"desired": 3, "ready": 2, "updated": 1} {
		if got := pods["measured "+state+" "]; got != count {
			t.Errorf("%s: %v", state, got)
		}
	}
	measure(rollout.Plan{}, nil)
	if got := series(t, "kiln_upgrade_info"); len(got) != 0 {
		t.Errorf("with nothing to replace: %v", got)
	}
}

func TestConditionsAreMeasured(t *testing.T) {
	measureConditions([]metav1.Condition{{Type: "Available", Status: "False", Reason: "Waiting"}, {Type: "Degraded", Status: "True", Reason: "Trouble"}})
	measureConditions([]metav1.Condition{{Type: "Available", Status: "True", Reason: "ComponentsServe"}, {Type: "Degraded", Status: "False", Reason: "NoTrouble"}})
	want := map[string]float64{"ComponentsServe True Available ": 1, "NoTrouble False Degraded ": 1}
	if got := series(t, "kiln_ovncluster_condition"); !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
}
