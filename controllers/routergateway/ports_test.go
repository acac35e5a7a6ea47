// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routergateway

import (
	"errors"
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/validation"
)

// A pod may get the address that the spec asks for between the check and the allocation.
func TestTheRouterKeepsItsAddressUntilTheAskedOneIsFree(t *testing.T) {
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "lab"}, Spec: kubeovnv1.SubnetSpec{
		CIDRBlock: "10.30.0.0/24", Gateway: "10.30.0.254", Vlan: "v", U2OInterconnection: true,
	}}
	network, problem := validation.Subnet(s.Name, &s.Spec)
	if problem != nil {
		t.Fatal(problem.Message)
	}
	scheme := runtime.NewScheme()
	if err := kubeovnv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	p := &Ports{Allocator: ipam.New(), Client: fake.NewClientBuilder().WithScheme(scheme).Build()}
	if err := p.Allocator.SetSubnet(s.Name, ipam.Subnet(network)); err != nil {
		t.Fatal(err)
	}
	u := Underlay{Subnet: s, Network: network, Hosts: map[netip.Addr]string{}}
	has := func(want string, given bool) {
		t.Helper()
		got, err := p.interconnection(t.Context(), u)
		if ipfamily.Join(got) != want || (err == nil) != given || err != nil && !errors.Is(err, northbound.ErrWaiting) {
			t.Errorf("the router has %v with error %v, not %s", got, err, want)
		}
	}
	has("10.30.0.1", true)
	asked := netip.MustParseAddr("10.30.0.77")
	if _, err := p.Allocator.Allocate("web.default", ipam.Request{Subnet: "lab", Addresses: []netip.Addr{asked}}); err != nil {
		t.Fatal(err)
	}
	u.Asked = []netip.Addr{asked}
	has("10.30.0.1", false)
	p.Allocator.Release("web.default")
	has("10.30.0.77", true)
	u.Hosts[asked] = lookup.HostAPIServer
	u.Asked = nil
	has("10.30.0.2", true)
}
