// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"maps"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// series are the values of a metric, by their labels' values in the order of the labels' names.
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
				values[labels] = m.GetGauge().GetValue()
			}
		}
	}
	return values
}

func TestWhatIsMeasuredOfAnUpgrade(t *testing.T) {
	rows := []v1alpha1.ComponentStatus{{Name: "measured", Desired: 3, Ready: 2, Updated: 1}}
	upgradePlan{stage: v1alpha1.StageNodes, stuck: true}.measure(rows)
	upgradePlan{stage: v1alpha1.StageNorthd, back: true, held: true}.measure(rows)
	if got := series(t, "kiln_upgrade_info"); !maps.Equal(got, map[string]float64{"Back Northd held ": 1}) {
		t.Errorf("upgrade: %v", got)
	}
	pods := series(t, "kiln_component_pods")
	for state, count := range map[string]float64{"desired": 3, "ready": 2, "updated": 1} {
		if got := pods["measured "+state+" "]; got != count {
			t.Errorf("%s: %v", state, got)
		}
	}
	upgradePlan{}.measure(nil)
	if got := series(t, "kiln_upgrade_info"); len(got) != 0 {
		t.Errorf("with nothing to replace: %v", got)
	}
}
