// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"context"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
)

// The port of an absent pod is removed only after its IP object records the lease: a new process could not restore the lease otherwise.
func TestARetainedLeaseIsRecordedBeforeItsPortIsRemoved(t *testing.T) {
	var enqueued []types.NamespacedName
	k := &Keeper{
		PortNamed: func(string) (kubeovnv1.Port, bool, bool) { return kubeovnv1.Port{}, false, false },
		Enqueue:   func(key types.NamespacedName) { enqueued = append(enqueued, key) },
	}
	port := kubeovnv1.NewPort("shop", "db-0", kubeovnv1.ProviderOVN)
	lease := ipam.Lease{Subnet: "s1", Addresses: []netip.Addr{netip.MustParseAddr("10.16.0.2"), netip.MustParseAddr("fd00::2")}}
	k.states.put(absent{port: port, state: Retained, podType: kubeovnv1.PodTypeStatefulSet})
	want, err := k.Want(t.Context(), port.Name, nil, lease)
	if err != nil || want == nil || want.Spec.PodName != "db-0" || want.Spec.V6IPAddress != "fd00::2" || want.Spec.NodeName != "" {
		t.Fatalf("before the IP object is written, it is to be %+v (%v)", want, err)
	}
	k.Recorded(port.Name)
	k.Recorded(port.Name)
	if len(enqueued) != 1 || enqueued[0] != port.Key() {
		t.Errorf("enqueued %v, want %s once", enqueued, port.Key())
	}
	if want, err = k.Want(t.Context(), port.Name, nil, lease); want != nil || err != nil {
		t.Errorf("a user has deleted the IP object, and it is to be %+v (%v)", want, err)
	}
}

// An event of an IP object finds the owner of its port without reading the name, which has dots in many places.
func TestPortsOfIPObjects(t *testing.T) {
	pods := map[string]kubeovnv1.Port{}
	k := &Keeper{PortNamed: func(name string) (kubeovnv1.Port, bool, bool) { port, known := pods[name]; return port, false, known }}
	const second = "net1.default.ovn"
	for _, port := range []kubeovnv1.Port{kubeovnv1.NewPort("shop", "web", second), kubeovnv1.NewPort("shop", "web.v1", kubeovnv1.ProviderOVN)} {
		pods[port.Name] = port
		if got := k.portOf(port.Name, nil); got != port {
			t.Errorf("%s is of %+v", port.Name, got)
		}
	}
	named := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "db.shop"}, Spec: kubeovnv1.IPSpec{Namespace: "shop", PodName: "db"}}
	if got := k.portOf(named.Name, named).Key(); got != (types.NamespacedName{Namespace: "shop", Name: "db"}) {
		t.Errorf("an IP object that names its pod has key %s", got)
	}
	free := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "web.shop." + second + ".spare"}}
	if got := k.portOf(free.Name, free).Key(); got != (types.NamespacedName{Name: free.Name}) {
		t.Errorf("a reservation that names no pod has key %s", got)
	}
	k.PodAt = func(context.Context, kubeovnv1.Port) (*corev1.Pod, error) { return nil, nil }
	if want, err := k.Want(t.Context(), free.Name, free, ipam.Lease{Subnet: "s1"}); want != nil || err != nil {
		t.Errorf("the IP object of a port that no pod has is to be %+v (%v)", want, err)
	}
}
