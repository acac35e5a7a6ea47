// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// wanting returns the difference for the changes of some Services. The changes must include all affected Services.
func wanting(w *writer, changes ...change) difference {
	w.register(changes)
	return w.take(changes)
}

// An older Service that requests an address, and releases it later, moves only the elements of this address, each time in one difference.
func TestTheOlderServiceHasAPlace(t *testing.T) {
	w := newWriter(nil)
	at := netip.MustParseAddrPort("192.0.2.1:80")
	service := func(name string, second int64, endpoint string) change {
		return change{
			service: types.NamespacedName{Namespace: "default", Name: name}, since: metav1.Unix(second, 0),
			pools: []pool{{
				proto: "tcp", family: families[0], slots: []netip.AddrPort{netip.MustParseAddrPort(endpoint)},
				fronts: []front{{address: at.Addr(), port: at.Port(), external: true}},
			}},
		}
	}
	old, young := func() change { return service("old", 1, "10.16.0.2:80") }, func() change { return service("young", 2, "10.16.0.3:80") }
	slot := element{"endpoints4", "192.0.2.1 . tcp . 80 . 0"}
	leads := func(d difference, to string) {
		t.Helper()
		if len(d.gone) > 1 || d.come[slot] != to+" . 80" {
			t.Errorf("gone %v, come %v; want %s to lead to %s", d.gone, d.come, slot.key, to)
		}
	}
	leads(wanting(w, young()), "10.16.0.3")
	if affected := w.register([]change{old()}); len(affected) != 1 || affected[0].Name != "young" {
		t.Errorf("the older Service has an effect on %v", affected)
	}
	leads(w.take([]change{old(), young()}), "10.16.0.2")
	if d := wanting(w, young()); len(d.gone)+len(d.come) != 0 {
		t.Errorf("the younger Service changes %v, %v", d.gone, d.come)
	}
	if affected := w.register([]change{{service: old().service}}); len(affected) != 1 || affected[0].Name != "young" {
		t.Errorf("the end of the older Service has an effect on %v", affected)
	}
	leads(w.take([]change{{service: old().service}, young()}), "10.16.0.3")

	given := service("given", 3, "10.16.0.4:80")
	given.pools[0].fronts[0].external = false // a ClusterIP, to which no other Service has a better right
	w.register([]change{given})
	leads(w.take([]change{given, young()}), "10.16.0.4")
	w.register([]change{old()})
	if d := w.take([]change{old(), given, young()}); len(d.gone)+len(d.come) != 0 {
		t.Errorf("asking for another's ClusterIP changes %v, %v", d.gone, d.come)
	}
	d := wanting(w, change{service: old().service}, change{service: young().service}, change{service: given.service})
	if len(w.have)+len(w.claims.of)+len(w.claims.wanted) != 0 || len(d.come) != 0 {
		t.Errorf("of no Service is left %v, %v, %v", w.have, w.claims.of, w.claims.wanted)
	}
}
