// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"net"
	"testing"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// A MAC address derived from an IPv4 address has no entry in macs. It must conflict like one that has.
func TestAMACThatFollowsFromAnAddressIsTakenWhileItsPortHasIt(t *testing.T) {
	a := with(t, spec(t, "10.0.0.0/28", "10.0.0.1"))
	allocate(t, a, "first", "10.0.0.5")
	allocation, _ := a.Lookup("first")
	if addr, ok := ipfamily.OfMAC([6]byte(allocation.MAC)); !ok || addr != allocation.Addresses[0] {
		t.Fatalf("MAC address %s follows from %s, %v; want %s", allocation.MAC, addr, ok, allocation.Addresses[0])
	}
	ask := func(port string) error {
		_, err := a.Allocate(port, Request{Subnet: "s", MAC: allocation.MAC})
		return err
	}
	var taken *TakenError
	if err := ask("second"); !errors.As(err, &taken) || taken.By != "first" {
		t.Errorf("asking for the MAC address of port first: %v", err)
	}
	a.Release("first")
	if err := ask("second"); err != nil {
		t.Errorf("a request for a released MAC address: %v", err)
	}
	allocate(t, a, "first", "10.0.0.5")
	if got, _ := a.Lookup("first"); got.MAC.String() == allocation.MAC.String() {
		t.Errorf("ports first and second both have %s", allocation.MAC)
	}
}

// Two ports restored at the start may have the same MAC address. The first one holds it, and it becomes free when that port is
// released.
func TestRestoredPortsThatShareAMACThatFollowsFromAnAddress(t *testing.T) {
	mac := ipfamily.MAC(static("10.0.0.5").Addresses[0], 0)
	for _, order := range [][]string{{"10.0.0.5", "10.0.0.6"}, {"10.0.0.6", "10.0.0.5"}} {
		a := with(t, spec(t, "10.0.0.0/28", "10.0.0.1"))
		for _, address := range order {
			allocation := Allocation{Subnet: "s", Addresses: static(address).Addresses, MAC: mac[:]}
			if err := a.Restore(address, allocation); err != nil {
				t.Fatal(err)
			}
		}
		ask := func() error {
			_, err := a.Allocate("another", Request{Subnet: "s", MAC: net.HardwareAddr(mac[:])})
			return err
		}
		a.Release(order[1])
		if err := ask(); err == nil {
			t.Errorf("%v: the MAC address is free while its first port has it", order)
		}
		a.Release(order[0])
		if err := ask(); err != nil {
			t.Errorf("%v: %v", order, err)
		}
	}
}
