// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ippool_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// TestAnInvalidPoolKeepsItsAddresses: for its namespaces, against other pods, and in its address set, also after a restart with an empty northbound database.
func TestAnInvalidPoolKeepsItsAddresses(t *testing.T) {
	w := newWorld(t)
	process := w.startUnmeasured()
	pool := &kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: kubeovnv1.IPPoolSpec{
		Subnet: "ovn-default", Namespaces: []string{"default"}, IPs: []string{"10.16.0.2..10.16.0.4", "fd00:10:16::2..fd00:10:16::4"}, EnableAddressSet: true,
	}}
	w.Create(pool)
	w.Ready(pool)
	ours := []string{"10.16.0.2", "10.16.0.3", "10.16.0.4"}
	w.has(w.pod("first"), ours...)
	published := func() {
		t.Helper()
		w.Eventually(func() string {
			for _, row := range w.Database.Rows("Address_Set") {
				if row["name"] == "p" && fmt.Sprint(row.Strings("addresses")) == "[10.16.0.2/31 10.16.0.4 fd00:10:16::2/127 fd00:10:16::4]" {
					return ""
				}
			}
			return fmt.Sprintf("address sets are %v", w.Database.Rows("Address_Set"))
		})
	}
	published()

	w.Change(pool, func() {
		pool.Spec.IPs, pool.Spec.Namespaces, pool.Spec.EnableAddressSet = []string{"10.99.0.1"}, nil, false
	})
	w.Says(pool, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "10.99.0.1 is outside of subnet ovn-default")
	w.Says(pool, kubeovnv1.ConditionReady, metav1.ConditionFalse, "the last valid spec stays applied")
	w.has(w.pod("second"), ours...)
	w.RestoresRows("IPPool//p")
	process.Stop()
	w.Database = nbtest.Start(t)
	process = w.startUnmeasured()
	published()
	w.has(w.pod("third"), ours...)
	fourth := w.pod("fourth")
	w.waits(fourth, "no free address of family IPv4 in IPPool p")
	if pools := process.Allocator.Pools("ovn-default"); len(pools) != 1 {
		t.Errorf("the allocator has the pools %v, want p", pools)
	}

	w.Change(pool, func() { pool.Spec.IPs = []string{"10.16.0.2..10.16.0.4", "fd00:10:16::2..fd00:10:16::4"} })
	w.Ready(pool)
	w.has(fourth, "10.16.0.5") // its namespace is not bound any more
	w.NoRows("IPPool//p")
}

// TestAChangedPoolTakesNoAddressesFromAnother: not even the older one of two pools.
func TestAChangedPoolTakesNoAddressesFromAnother(t *testing.T) {
	w := newWorld(t)
	older, younger := w.pool("a-older", nil, "10.16.0.8..10.16.0.9"), w.pool("b-younger", nil, "10.16.0.10..10.16.0.11")
	process := w.startUnmeasured()
	w.Ready(older)
	w.Ready(younger)
	w.Change(older, func() { older.Spec.IPs = []string{"10.16.0.8..10.16.0.10"} })
	w.Says(older, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "10.16.0.8-10.16.0.10 overlaps with 10.16.0.10-10.16.0.11 of IPPool b-younger")
	w.Rests("ippool")
	w.Ready(younger)
	process.Stop()
	w.startUnmeasured()
	w.Ready(younger)
	w.has(w.pod("p", "ip_pool", "a-older"), "10.16.0.8")
	w.Change(younger, func() { younger.Spec.IPs = []string{"10.16.0.11"} })
	w.Ready(older)
	w.Ready(younger)
}
