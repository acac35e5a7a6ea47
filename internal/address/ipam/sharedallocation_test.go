// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// sharing returns an allocator with a dual-stack subnet in which the holder vip/a has an address of each family.
func sharing(t *testing.T) (*Allocator, Allocation) {
	t.Helper()
	a := New()
	err := a.SetSubnet("s", Subnet{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.16.0.0/29"), netip.MustParsePrefix("fd00::/125")}})
	if err != nil {
		t.Fatal(err)
	}
	allocation, err := a.Allocate("vip/a", Request{Subnet: "s", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}})
	if err != nil {
		t.Fatal(err)
	}
	return a, allocation
}

func requestShared(allocation Allocation) Request {
	return Request{
		Subnet: "s", SharedBy: "vip/a", Addresses: allocation.Addresses, MAC: allocation.MAC, AnyPool: true,
		Families: []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6},
	}
}

// has checks the holder of the addresses of an allocation; an empty by means that they are free.
func has(t *testing.T, a *Allocator, by string, allocation Allocation) {
	t.Helper()
	for _, address := range allocation.Addresses {
		var taken *TakenError
		_, err := a.Allocate("other", Request{Subnet: "s", Addresses: []netip.Addr{address}, Families: []ipfamily.Family{ipfamily.Of(address)}})
		switch {
		case err == nil:
			a.Release("other")
			if by != "" {
				t.Errorf("%s is free, want it to be of %s", address, by)
			}
		case !errors.As(err, &taken) || taken.By != by:
			t.Errorf("%s: %v, want it to be of %q", address, err, by)
		}
	}
}

func TestSharedAllocationReturnsToItsOwner(t *testing.T) {
	a, allocation := sharing(t)
	has(t, a, "vip/a", allocation)
	for range 2 { // the second time the port already has them
		got, err := a.Allocate("p", requestShared(allocation))
		if err != nil || !slices.Equal(got.Addresses, allocation.Addresses) || got.MAC.String() != allocation.MAC.String() {
			t.Fatalf("the user has %v, %v; want %v", got, err, allocation)
		}
	}
	has(t, a, "p", allocation)
	if by := a.UserOf("vip/a"); by != "p" {
		t.Errorf("the user is %q", by)
	}
	if kept, ok := a.Lookup("vip/a"); !ok || !slices.Equal(kept.Addresses, allocation.Addresses) {
		t.Errorf("the owner has %v", kept)
	}
	if _, err := a.Allocate("q", requestShared(allocation)); err == nil {
		t.Error("the allocation has two users")
	}
	if using := a.Usage("s").IPv4().Using; using != 1 {
		t.Errorf("%v addresses are in use", using)
	}
	a.Release("p")
	has(t, a, "vip/a", allocation)
	if by := a.UserOf("vip/a"); by != "" {
		t.Errorf("after the release the user is %q", by)
	}
	if _, err := a.Allocate("q", requestShared(allocation)); err != nil {
		t.Errorf("the allocation cannot be shared again: %v", err)
	}
	a.Release("q")
	a.Release("vip/a")
	has(t, a, "", allocation)
}

func TestUserKeepsSharedAllocationOfReleasedOwner(t *testing.T) {
	a, allocation := sharing(t)
	if _, err := a.Allocate("p", requestShared(allocation)); err != nil {
		t.Fatal(err)
	}
	a.Release("vip/a")
	has(t, a, "p", allocation)
	a.Release("p")
	has(t, a, "", allocation)
}

func TestOwnersAreRestoredAfterUsers(t *testing.T) {
	for _, used := range []bool{true, false} {
		_, allocation := sharing(t)
		a := New()
		if err := a.SetSubnet("s", Subnet{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.16.0.0/29"), netip.MustParsePrefix("fd00::/125")}}); err != nil {
			t.Fatal(err)
		}
		if used {
			if err := a.Restore("p", allocation); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.RestoreShared("vip/a", allocation); err != nil {
			t.Fatal(err)
		}
		if used {
			has(t, a, "p", allocation)
			if !a.Fits("p", requestShared(allocation)) {
				t.Error("the restored allocation is not shared")
			}
			a.Release("p")
		}
		has(t, a, "vip/a", allocation)
		if _, err := a.Allocate("q", Request{Subnet: "s", MAC: allocation.MAC}); err == nil {
			t.Error("another port gets the owner's MAC address")
		}
	}
}

func TestRefusedSharingChangesNothing(t *testing.T) {
	a, allocation := sharing(t)
	before, err := a.Allocate("p", Request{Subnet: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Allocate("p", Request{Subnet: "s", SharedBy: "vip/a", Addresses: []netip.Addr{allocation.Addresses[0], netip.MustParseAddr("fd01::1")}}); err == nil {
		t.Fatal("an address outside of the subnet is shared")
	}
	has(t, a, "vip/a", allocation)
	if after, _ := a.Lookup("p"); !slices.Equal(after.Addresses, before.Addresses) {
		t.Errorf("the port has %v, it had %v", after, before)
	}
	if _, err := a.Allocate("p", requestShared(allocation)); err != nil {
		t.Fatal(err)
	}
	has(t, a, "", before)
	if _, err := a.Allocate("p", Request{Subnet: "s", Addresses: []netip.Addr{netip.MustParseAddr("10.99.0.1")}}); err == nil {
		t.Fatal("an address outside of the subnet is given")
	}
	has(t, a, "p", allocation)
	a.Release("p")
	has(t, a, "vip/a", allocation)
}

func TestDeletedSubnetReleasesOwnersAndUsers(t *testing.T) {
	a, allocation := sharing(t)
	if _, err := a.Allocate("p", requestShared(allocation)); err != nil {
		t.Fatal(err)
	}
	a.DeleteSubnet("s")
	for _, holder := range []string{"p", "vip/a"} {
		if allocation, ok := a.Lookup(holder); ok {
			t.Errorf("%s holds %v", holder, allocation)
		}
	}
}
