// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// A port with port security accepts the subnet's vips that its pod requests, and no other addresses.
func TestAPodSharesTheVipsOfItsSubnetOnly(t *testing.T) {
	w := newWorld(t)
	s := w.subnet("ovn-default", "10.16.0.0/24", func(s *kubeovnv1.SubnetSpec) { s.Vips = []string{"10.16.0.100"} })
	process := w.start()
	p := w.pod("default", "p", "port_security", "true", "port_vips", "10.16.0.100,169.254.107.105,10.16.0.100,10.16.0.1,8.8.8.8")
	w.warnedOf(p, "AddressNotShared", "169.254.107.105,10.16.0.1,8.8.8.8")
	secured := func(want string) {
		w.Eventually(func() string {
			if got := w.port(p).Strings("port_security"); len(got) != 1 || got[0] != want {
				return "the port passes " + slices.Concat(got, []string{"nothing"})[0]
			}
			return ""
		})
	}
	mac := p.Annotations[kubeovnv1.AnnotationMACAddress.Key()]
	secured(mac + " " + address(p) + " 10.16.0.100")
	w.Change(s, func() { s.Spec.Vips = nil })
	w.InForce(s, process)
	secured(mac + " " + address(p))
}

// No pod takes over an address that the pods of its subnet share, by no request.
func TestAPodGetsNoVipOfItsSubnetAsItsOwn(t *testing.T) {
	w := newWorld(t)
	s := w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112", func(s *kubeovnv1.SubnetSpec) {
		s.Vips = []string{"10.16.0.100", "fd00:10:16::100"}
	})
	process := w.start()
	reservation := &kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: "reserved.default"},
		Spec:       kubeovnv1.IPSpec{Subnet: "ovn-default", Namespace: "default", PodName: "reserved", V4IPAddress: "10.16.0.100"},
	}
	w.Create(reservation)
	w.hasEvent(reservation, "is one of the vips of subnet ovn-default")
	for name, request := range map[string][]string{
		"v4":       {"ip_address", "10.16.0.100"},
		"v6":       {"ip_address", "10.16.0.9,fd00:10:16::100"},
		"list":     {"ip_pool", "10.16.0.100,10.16.0.100"},
		"reserved": nil,
	} {
		p := newPod("default", name, request...)
		w.Create(p)
		w.warned(p, "is one of the vips of subnet ovn-default, which pods share")
		if allocation, held := process.Allocator.Lookup(name + ".default"); held {
			t.Errorf("pod %s holds %v", name, allocation.Addresses)
		}
		if name != "v6" {
			w.Delete(p)
		}
	}
	v6 := newPod("default", "v6")
	w.Get(v6)
	w.Change(s, func() { s.Spec.Vips = []string{"10.16.0.100"} })
	w.InForce(s, process)
	w.allocated(v6)
	w.has(v6, "10.16.0.9,fd00:10:16::100")
}

// Manifests of Kube-OVN have Vips that list no namespace.
func TestAVipThatListsNoNamespaceIsForTheOnlyNamespaceOfItsSubnet(t *testing.T) {
	w := newWorld(t)
	s := w.subnet("tenants", "10.17.0.0/24", func(s *kubeovnv1.SubnetSpec) { s.Namespaces = []string{"default", "other"} })
	process := w.start()
	_, err := process.Allocator.Allocate(translate.VipHolder("v"), ipam.Request{Subnet: "tenants", Addresses: []netip.Addr{netip.MustParseAddr("10.17.0.50")}})
	w.Must(err)
	vip := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: kubeovnv1.VipSpec{Subnet: "tenants"}}
	w.Create(vip)
	vip.Status.V4IP = "10.17.0.50"
	w.Must(w.Client.Status().Update(w.Context(), vip))
	user := newPod("default", "user", "vip", "v")
	w.Create(user)
	w.warned(user, "does not list namespace default: add it to allowedNamespaces of the Vip")
	w.Change(s, func() { s.Spec.Namespaces = []string{"default"} })
	w.InForce(s, process)
	if w.allocated(user); address(user) != "10.17.0.50" {
		t.Errorf("the pod has %s", address(user))
	}
}
