// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package podset

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/desired"
)

func egressAddress(name string, created time.Time) *kubeovnv1.EgressAddress {
	return &kubeovnv1.EgressAddress{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(created)}}
}

func TestOwnersAreInTheOrderOfTheirAge(t *testing.T) {
	day := time.Date(2026, 11, 30, 23, 59, 59, 0, time.FixedZone("east", 3600))
	var texts []string
	for _, o := range []*kubeovnv1.EgressAddress{egressAddress("z", day.Add(-time.Hour)), egressAddress("a", day), egressAddress("b", day.UTC()), egressAddress("a", day.Add(time.Second))} {
		texts = append(texts, OwnerOf(o))
		if got := NameOf(OwnerOf(o)); got != o.Name {
			t.Errorf("the name in %s is %s", OwnerOf(o), got)
		}
	}
	if !slices.IsSorted(texts) {
		t.Errorf("the order is not of the age: %q", texts)
	}
}

func TestSelectorsOfEgressAddressesDiffer(t *testing.T) {
	spec := &kubeovnv1.EgressAddressSpec{Vpc: "blue", NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}, OvnEip: "out"}
	a, b := OfEgress(egressAddress("a", time.Unix(1, 0)), spec), OfEgress(egressAddress("b", time.Unix(1, 0)), spec)
	if a == b || a.Name() == b.Name() || a.HasRows() {
		t.Errorf("the selectors are %+v and %+v", a, b)
	}
	spec.OvnEip = ""
	if c := OfEgress(egressAddress("a", time.Unix(1, 0)), spec); c.Name() == a.Name() || !c.HasRows() {
		t.Errorf("without an OvnEip the selector is %+v", c)
	}
}

// TestBothSetsOfAnOwnerHaveAPod: while an owner replaces a set by another, its pods are in both.
func TestBothSetsOfAnOwnerHaveAPod(t *testing.T) {
	x, owner := New(), desired.Owner{Kind: "EgressAddress", Name: "out"}
	key := keyOf("n", "p")
	x.SetNamespace("n", nil)
	x.SetPod(Pod{Key: key, Vpc: "v", Labels: map[string]string{"app": "a"}})
	old, next := Selector{Role: Egress, Owner: "1/out", Vpc: "v"}, Selector{Role: Egress, Owner: "1/out", Vpc: "v", Pods: "app=a"}
	x.Use(owner, []Selector{old})
	x.Settle(owner)
	x.Use(owner, []Selector{next})
	if used := x.UsedBy(owner); len(used) != 2 || !slices.Contains(used, old) || !slices.Contains(used, next) {
		t.Errorf("the owner uses %v", used)
	}
	if m := x.Membership(key); len(m.Parts) != 2 {
		t.Errorf("the pod is in %v", m.Parts)
	}
	x.Settle(owner)
	if m := x.Membership(key); len(m.Parts) != 1 || m.Parts[0].Selector != next {
		t.Errorf("the pod stays in %v", m.Parts)
	}
	if used := x.UsedBy(owner); len(used) != 1 {
		t.Errorf("the owner still uses %v", used)
	}
}
