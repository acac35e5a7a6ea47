// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package leases

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestRetained(t *testing.T) {
	var r Retained
	first, second, alone := KeyOf("db-0.shop"), KeyOf("db-1.shop"), KeyOf("web.shop")
	r.Put(first, kubeovnv1.PodTypeStatefulSet)
	r.Put(second, kubeovnv1.PodTypeStatefulSet)
	r.Put(second, "") // its StatefulSet is gone, and a user's reservation has the address
	r.Put(alone, "")
	if got := r.Of(types.NamespacedName{Namespace: "shop", Name: "db"}); len(got) != 2 {
		t.Errorf("of the set: %v", got)
	}
	if got := r.OfType(kubeovnv1.PodTypeStatefulSet); !slices.Equal(got, []types.NamespacedName{first}) {
		t.Errorf("of StatefulSets: %v", got)
	}
	if n := r.ForWorkloads("shop"); n != 1 {
		t.Errorf("%d leases are retained for workloads, want the one of db-0", n)
	}
	if kind, ok := r.PodType(second); kind != "" || !ok {
		t.Errorf("a reservation: %q %t", kind, ok)
	}
	for _, key := range []types.NamespacedName{first, second, alone} {
		r.Forget(key)
	}
	if len(r.leases)+len(r.byOwner)+len(r.forWorkloads) != 0 {
		t.Errorf("left behind: %v %v", r.leases, r.byOwner)
	}
}
