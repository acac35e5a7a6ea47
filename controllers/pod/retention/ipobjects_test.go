// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"context"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/pod/address"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
	"github.com/kiln-net/kiln/internal/address/ipam"
)

// The port of an absent pod is removed only after its IP object records the allocation: a new process could not restore the allocation otherwise.
func TestARetainedAllocationIsRecordedBeforeItsPortIsRemoved(t *testing.T) {
	var enqueued []types.NamespacedName
	k := &Keeper{
		PortNamed: func(string) (kubeovnv1.Port, bool, bool) { return kubeovnv1.Port{}, false, false },
		Enqueue:   func(key types.NamespacedName) { enqueued = append(enqueued, key) },
	}
	port := kubeovnv1.NewPort("shop", "db-0", kubeovnv1.ProviderOVN)
	allocation := ipam.Allocation{Subnet: "s1", Addresses: []netip.Addr{netip.MustParseAddr("10.16.0.2"), netip.MustParseAddr("fd00::2")}}
	k.states.put(absent{port: port, state: Retained, podType: kubeovnv1.PodTypeStatefulSet})
	want, err := k.Want(t.Context(), port.Name, nil, allocation)
	if err != nil || want == nil || want.Spec.PodName != "db-0" || want.Spec.V6IPAddress != "fd00::2" || want.Spec.NodeName != "" {
		t.Fatalf("before the IP object is written, the wanted one is %+v (%v)", want, err)
	}
	k.Recorded(port.Name)
	k.Recorded(port.Name)
	if len(enqueued) != 1 || enqueued[0] != port.Key() {
		t.Errorf("enqueued %v, want %s once", enqueued, port.Key())
	}
	if want, err = k.Want(t.Context(), port.Name, nil, allocation); want != nil || err != nil {
		t.Errorf("a user has deleted the IP object, and the wanted one is %+v (%v)", want, err)
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
	if want, err := k.Want(t.Context(), free.Name, free, ipam.Allocation{Subnet: "s1"}); want != nil || err != nil {
		t.Errorf("the wanted IP object of a port that no pod has is %+v (%v)", want, err)
	}
}

// The event of a new pod has recorded a port with the name of a retained one before the start reads the IP object. The retained allocation stays with its own port.
func TestARetainedAllocationIsOfItsPortAndNotOfTheName(t *testing.T) {
	retained, late := kubeovnv1.NewPort("victim", "db-0", "net.default"), kubeovnv1.NewPort("default", "db-0.victim.net", kubeovnv1.ProviderOVN)
	scheme := runtime.NewScheme()
	if err := kubeovnv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	var enqueued []types.NamespacedName
	k := &Keeper{
		Allocator: ipam.New(), Addresses: &address.Chooser{Client: fake.NewClientBuilder().WithScheme(scheme).Build()},
		PortNamed: func(string) (kubeovnv1.Port, bool, bool) { return late, false, true },
		PodAt:     func(context.Context, kubeovnv1.Port) (*corev1.Pod, error) { return &corev1.Pod{}, nil },
		Enqueue:   func(key types.NamespacedName) { enqueued = append(enqueued, key) },
	}
	cidrs := []netip.Prefix{netip.MustParsePrefix("10.16.0.0/24"), netip.MustParsePrefix("fd00::/112")}
	if err := k.Allocator.SetSubnet("s1", ipam.Subnet{CIDRs: cidrs}); err != nil {
		t.Fatal(err)
	}
	ip := ipobject.OfPod(retained, "", kubeovnv1.PodTypeStatefulSet, ipam.Allocation{
		Subnet: "s1", Addresses: []netip.Addr{netip.MustParseAddr("10.16.0.2"), netip.MustParseAddr("fd00::2")}, MAC: []byte{2, 0, 0, 0, 0, 2},
	})
	k.restoreOne(t.Context(), ip)
	if got := k.Retained(ip.Name); got != retained {
		t.Errorf("the allocation is retained for %+v, want %+v", got, retained)
	}
	if got := k.portOf(ip.Name, ip); got != retained {
		t.Errorf("the name is of %+v", got)
	}
	if allocation, held := k.Allocator.Lookup(ip.Name); !held || len(allocation.Addresses) != 2 {
		t.Errorf("the allocation is %+v", allocation)
	}
	want, err := k.Want(t.Context(), ip.Name, ip, ipam.Allocation{Subnet: "s1"})
	if err != nil || want.Spec.Namespace != "victim" || want.Spec.PodName != "db-0" {
		t.Errorf("the wanted IP object is %+v (%v)", want, err)
	}
	if k.Decide(ip.Name, ip); len(enqueued) != 1 || enqueued[0] != retained.Key() {
		t.Errorf("enqueued %v, want %s", enqueued, retained.Key())
	}
	k.states.forget(ip.Name)
	if got := k.Retained(ip.Name); got != (kubeovnv1.Port{}) {
		t.Errorf("no allocation is retained, and the name is of %+v", got)
	}
}

// The IP object of one port does not prove the claim of another port with the same name.
func TestAClaimIsProvenByTheIPObjectOfItsPort(t *testing.T) {
	victim, other := kubeovnv1.NewPort("victim", "db-0", "net.default"), kubeovnv1.NewPort("default", "db-0.victim.net", kubeovnv1.ProviderOVN)
	ip := ipobject.OfPod(victim, "", kubeovnv1.PodTypeStatefulSet, ipam.Allocation{Subnet: "s1"})
	unnamed := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: victim.Name}}
	for _, c := range []struct {
		port        kubeovnv1.Port
		ip          *kubeovnv1.IP
		contradicts bool
	}{{victim, ip, false}, {other, ip, true}, {victim, unnamed, false}, {other, unnamed, false}, {victim, nil, false}} {
		if got := (claim{port: c.port.Name, owner: c.port.Key()}).contradicts(c.ip); got != c.contradicts {
			t.Errorf("the IP object %+v names another port than %+v: %t", c.ip, c.port, got)
		}
	}
	if (claim{port: ip.Name}).contradicts(ip) {
		t.Error("the claim of a node is not of a pod")
	}
}
