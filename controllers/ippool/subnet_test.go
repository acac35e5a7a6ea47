// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ippool_test

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestPoolsStayWhileTheSubnetIsInvalid(t *testing.T) {
	w := newWorld(t)
	process := w.startUnmeasured()
	older := w.pool("older", nil, "10.16.0.8..10.16.0.15", "fd00:10:16::8")
	w.Ready(older)
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "ovn-default"}}
	w.Get(s)
	w.Change(s, func() { s.Spec.CIDRBlock = "10.99.0.0/24,fd00:10:99::/112" })
	w.Eventually(func() string { // the process has the change
		cached := &kubeovnv1.Subnet{}
		w.Must(process.Client.Get(w.Context(), client.ObjectKeyFromObject(s), cached))
		if cached.Spec.CIDRBlock != s.Spec.CIDRBlock {
			return "the cache has the former spec"
		}
		return ""
	})
	w.Ready(w.pool("younger", nil, "10.16.0.20", "fd00:10:16::20"))
	w.Ready(older)
	if pools := process.Allocator.Pools("ovn-default"); !slices.Equal(pools, []string{"older", "younger"}) {
		t.Errorf("the allocator has the pools %v, want older and younger", pools)
	}
}

func TestTheAddressSetGoesWithTheSubnet(t *testing.T) {
	w := newWorld(t)
	process := w.startUnmeasured()
	pool := &kubeovnv1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       kubeovnv1.IPPoolSpec{Subnet: "shop", IPs: []string{"10.20.0.8..10.20.0.15"}, EnableAddressSet: true},
	}
	sets := func(want int) {
		t.Helper()
		w.Eventually(func() string {
			n := 0
			for _, name := range w.Database.Names("Address_Set") {
				if name == "web" {
					n++
				}
			}
			if n != want {
				return fmt.Sprintf("there are %d address sets, want %d", n, want)
			}
			return ""
		})
	}
	shop := func() *kubeovnv1.Subnet {
		return w.Subnet("shop", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = "10.20.0.0/24" }, process)
	}
	s := shop()
	w.Create(pool)
	w.Ready(pool)
	sets(1)
	w.Delete(s)
	w.Says(pool, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "subnet shop does not exist")
	sets(0)
	shop()
	w.Ready(pool)
	sets(1)
}
