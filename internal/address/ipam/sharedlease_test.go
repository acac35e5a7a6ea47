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
func sharing(t *testing.T) (*Allocator, Lease) {
	t.Helper()
	a := New()
	err := a.SetSubnet("s", Subnet{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.16.0.0/29"), netip.MustParsePrefix("fd00::/125")}})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := a.Allocate("vip/a", Request{Subnet: "s", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}})
	if err != nil {
		t.Fatal(err)
	}
	return a, lease
}

func requestShared(lease Lease) Request {
	return Request{
		Subnet: "s", SharedBy: "vip/a", Addresses: lease.Addresses, MAC: lease.MAC, AnyPool: true,
		Families: []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6},
	}
}

// has checks the holder of the addresses of a lease; an empty by means that they are free.
func has(t *testing.T, a *Allocator, by string, lease Lease) {
	t.Helper()
	for _, address := range lease.Addresses {
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

func TestSharedLeaseReturnsToItsOwner(t *testing.T) {
	a, lease := sharing(t)
	has(t, a, "vip/a", lease)
	for range 2 { // the second time the port already has them
		got, err := a.Allocate("p", requestShared(lease))
		if err != nil || !slices.Equal(got.Addresses, lease.Addresses) || got.MAC.String() != lease.MAC.String() {
			t.Fatalf("the user has %v, %v; want %v", got, err, lease)
		}
	}
	has(t, a, "p", lease)
	if by := a.UserOf("vip/a"); by != "p" {
		t.Errorf("the user is %q", by)
	}
	if kept, ok := a.Lookup("vip/a"); !ok || !slices.Equal(kept.Addresses, lease.Addresses) {
		t.Errorf("the owner has %v", kept)
	}
	if _, err := a.Allocate("q", requestShared(lease)); err == nil {
		t.Error("the lease has two users")
	}
	if using := a.Usage("s").IPv4().Using; using != 1 {
		t.Errorf("%v addresses are in use", using)
	}
	a.Release("p")
	has(t, a, "vip/a", lease)
	if by := a.UserOf("vip/a"); by != "" {
		t.Errorf("after the release the user is %q", by)
	}
	if _, err := a.Allocate("q", requestShared(lease)); err != nil {
		t.Errorf("the lease cannot be shared again: %v", err)
	}
	a.Release("q")
	a.Release("vip/a")
	has(t, a, "", lease)
}

func TestUserKeepsSharedLeaseOfReleasedOwner(t *testing.T) {
	a, lease := sharing(t)
	if _, err := a.Allocate("p", requestShared(lease)); err != nil {
		t.Fatal(err)
	}
	a.Release("vip/a")
	has(t, a, "p", lease)
	a.Release("p")
	has(t, a, "", lease)
}

func TestOwnersAreRestoredAfterUsers(t *testing.T) {
	for _, used := range []bool{true, false} {
		_, lease := sharing(t)
		a := New()
		if err := a.SetSubnet("s", Subnet{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.16.0.0/29"), netip.MustParsePrefix("fd00::/125")}}); err != nil {
			t.Fatal(err)
		}
		if used {
			if err := a.Restore("p", lease); err != nil {
				t.Fatal(err)
			}
		}
		if err := a.RestoreShared("vip/a", lease); err != nil {
			t.Fatal(err)
		}
		if used {
			has(t, a, "p", lease)
			if !a.Fits("p", requestShared(lease)) {
				t.Error("the restored lease is not shared")
			}
			a.Release("p")
		}
		has(t, a, "vip/a", lease)
		if _, err := a.Allocate("q", Request{Subnet: "s", MAC: lease.MAC}); err == nil {
			t.Error("another port gets the owner's MAC address")
		}
	}
}

func TestRefusedSharingChangesNothing(t *testing.T) {
	a, lease := sharing(t)
	before, err := a.Allocate("p", Request{Subnet: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Allocate("p", Request{Subnet: "s", SharedBy: "vip/a", Addresses: []netip.Addr{lease.Addresses[0], netip.MustParseAddr("fd01::1")}}); err == nil {
		t.Fatal("an address outside of the subnet is shared")
	}
	has(t, a, "vip/a", lease)
	if after, _ := a.Lookup("p"); !slices.Equal(after.Addresses, before.Addresses) {
		t.Errorf("the port has %v, it had %v", after, before)
	}
	if _, err := a.Allocate("p", requestShared(lease)); err != nil {
		t.Fatal(err)
	}
	has(t, a, "", before)
	if _, err := a.Allocate("p", Request{Subnet: "s", Addresses: []netip.Addr{netip.MustParseAddr("10.99.0.1")}}); err == nil {
		t.Fatal("an address outside of the subnet is given")
	}
	has(t, a, "p", lease)
	a.Release("p")
	has(t, a, "vip/a", lease)
}

func TestDeletedSubnetReleasesOwnersAndUsers(t *testing.T) {
	a, lease := sharing(t)
	if _, err := a.Allocate("p", requestShared(lease)); err != nil {
		t.Fatal(err)
	}
	a.DeleteSubnet("s")
	for _, holder := range []string{"p", "vip/a"} {
		if lease, ok := a.Lookup(holder); ok {
			t.Errorf("%s holds %v", holder, lease)
		}
	}
}
