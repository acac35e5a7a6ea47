// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/validation"
)

// A pod may get an address between the check of a new spec and the update of the allocator. It blocks the change like a pod that had its
// address before the check.
func TestAPodThatComesDuringTheCheckIsNotCutOff(t *testing.T) {
	r := &Reconciler{Allocator: ipam.New()}
	spec := func(cidrs, gateway string) (*kubeovnv1.Subnet, validation.Network) {
		t.Helper()
		s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidrs, Gateway: gateway}}
		network, problem := validation.Subnet(s.Name, &s.Spec)
		if problem != nil {
			t.Fatal(problem.Message)
		}
		return s, network
	}
	says := func(cidrs, gateway, want string) {
		t.Helper()
		problem, err := r.tell(spec(cidrs, gateway))
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case problem == nil && want != "":
			t.Errorf("%s with gateway %s is effective, want %q", cidrs, gateway, want)
		case problem != nil && (want == "" || problem.Reason != validation.ReasonAddressesInUse || !strings.Contains(problem.Message, want)):
			t.Errorf("%s with gateway %s: %s, want %q", cidrs, gateway, problem.Message, want)
		}
	}
	hold := func(port, address string) {
		t.Helper()
		if _, err := r.Allocator.Allocate(port, ipam.Request{Subnet: "shop", Addresses: []netip.Addr{netip.MustParseAddr(address)}}); err != nil {
			t.Fatal(err)
		}
	}
	const wide, narrow = "10.20.0.0/23,fd00:20::/64", "10.20.0.0/24,fd00:20::/64"
	says(wide, "10.20.0.1,fd00:20::1", "")
	hold("db.default", "10.20.1.7")
	hold("web.default", "fd00:20::9")
	hold(translate.QuerierHolder("shop"), "10.20.1.8") // the querier does not block: it gets another address
	says(narrow, "10.20.0.1,fd00:20::1", "leaves out addresses in use: 10.20.1.7 (db.default)")
	says(wide, "10.20.0.1,fd00:20::9", "gateway is in use: fd00:20::9 (web.default)")
	hold("more.default", "10.20.1.9") // the previous network is still in effect
	r.Allocator.Release("more.default")
	r.Allocator.Release("db.default")
	says(narrow, "10.20.0.1,fd00:20::1", "")
}
