// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// subnets is a reader with Subnets that have these statuses of the condition Ready, and without other objects.
type subnets []metav1.ConditionStatus

func (subnets) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return nil
}

func (s subnets) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if to, is := list.(*kubeovnv1.SubnetList); is {
		for _, status := range s {
			subnet := kubeovnv1.Subnet{}
			subnet.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: status}, {Type: "Validated", Status: "True"}}
			to.Items = append(to.Items, subnet)
		}
	}
	return nil
}

func TestObjectsAreCountedByTheirConditions(t *testing.T) {
	elected := make(chan struct{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(objectCounter{reader: subnets{"True", "True", "False"}, elected: elected})
	count := func() map[string]float64 {
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]float64{}
		for _, f := range families {
			for _, m := range f.Metric {
				var labels []string
				for _, l := range m.Label {
					labels = append(labels, l.GetValue())
				}
				found[strings.Join(labels, " ")] = m.GetGauge().GetValue()
			}
		}
		return found
	}
	if got := count(); len(got) > 0 {
		t.Errorf("a process that does not lead reports %v", got)
	}
	close(elected)
	got := count()
	for labels, want := range map[string]float64{"Ready Subnet True": 2, "Ready Subnet False": 1, "Validated Subnet True": 3} {
		if got[labels] != want {
			t.Errorf("%s: %v, want %v", labels, got[labels], want)
		}
	}
	if len(got) != 3 {
		t.Errorf("%v", got)
	}
}
