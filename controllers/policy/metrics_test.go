// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/podset"
)

func TestSizesAreMeasured(t *testing.T) {
	x := podset.New()
	r := &Reconciler{Sets: x}
	r.spend(types.NamespacedName{Namespace: "n", Name: "np"}, time.Time{}, maxNamespaceFlows+1)
	measured.Store(r)
	x.SetPod(podset.Pod{Key: podset.Key{NamespacedName: types.NamespacedName{Namespace: "n", Name: "p"}}, Groups: []string{"g"}})
	x.Use(translate.NetworkPolicyOwner("n", "np"), []podset.Selector{
		{Role: podset.Subjects, Namespace: "n"}, {Role: podset.Peers, Namespace: "n"}, {Role: podset.Peers, Namespace: "n", Pods: "a"},
	})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector{})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	want := map[string]float64{"kiln_policy_sets": 3, "kiln_policy_memberships": 2, "kiln_policy_users": 1, "kiln_security_group_pods": 1, "kiln_policy_refused": 1}
	if !maps.Equal(got, want) {
		t.Errorf("measured %v, want %v", got, want)
	}
}
