// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ippool_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

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
