// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package join_test

import (
	"errors"
	"net/netip"
	"testing"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/join"
)

// TestANodeTakesNoPodsAddress: node `a.shop` and pod `node-a` of namespace `shop` need the same port name.
func TestANodeTakesNoPodsAddress(t *testing.T) {
	const port, node = "node-a.shop", "a.shop"
	subnet := join.Subnet{CIDRs: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/16")}}
	allocator := ipam.New()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(allocator.SetSubnet(kubeovnv1.JoinSubnet, ipam.Subnet{CIDRs: subnet.CIDRs}))
	must(allocator.SetSubnet("ovn-default", ipam.Subnet{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16")}}))
	pod, err := allocator.Allocate(port, ipam.Request{Subnet: "ovn-default"})
	must(err)

	allocations := join.Allocations{Allocator: allocator}
	if _, err := allocations.Allocation(t.Context(), node, port, subnet); !errors.Is(err, join.ErrNameTaken) {
		t.Errorf("the node got the pod's: %v", err)
	}
	allocations.Release(t.Context(), node, port)
	if holder := allocator.Holder("ovn-default", pod.Addresses[0]); holder != port {
		t.Errorf("the pod's address is %q's", holder)
	}

	allocator.Release(port)
	if allocation, err := allocations.Allocation(t.Context(), node, port, subnet); err != nil || allocation.Subnet != kubeovnv1.JoinSubnet {
		t.Errorf("after the pod's deletion: %v, %v", allocation, err)
	}
	allocations.Release(t.Context(), node, port)
	if _, held := allocator.Lookup(port); held {
		t.Error("the deleted node holds an address")
	}
}
