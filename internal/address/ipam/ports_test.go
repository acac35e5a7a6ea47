// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/testing/seed"
)

// limited returns an allocator with a dual-stack subnet "s", whose switch can have limit ports and has one of its own.
func limited(t testing.TB, limit int) *Allocator {
	t.Helper()
	s := spec(t, "10.0.0.0/16,fd00::/112", "10.0.0.1,fd00::1")
	s.OwnPorts = 1
	a := with(t, s)
	a.LimitPorts(limit)
	return a
}

func TestASwitchGetsNoPortBeyondItsLimit(t *testing.T) {
	a := limited(t, 3)
	for _, port := range []string{"a", "b"} {
		allocate(t, a, port)
	}
	full := (*PortsError)(nil)
	if _, err := a.Allocate("c", static()); !errors.As(err, &full) || full.Limit != 3 || !errors.Is(err, ErrExhausted) {
		t.Errorf("a third holder: %v, want a PortsError", err)
	}
	if u := a.Ports("s"); u != (PortUsage{Used: 3, Limit: 3}) || !u.Full() {
		t.Errorf("usage is %+v", u)
	}
	if n := a.Available("s"); n != 0 {
		t.Errorf("%v addresses are available on a full switch", n)
	}
	if _, err := a.Allocate("c", static("10.1.0.1")); errors.As(err, &full) || err == nil {
		t.Errorf("an impossible request gets %v instead of its own error", err)
	}
	allocate(t, a, "a") // a holder is not new
	a.Release("b")
	allocate(t, a, "c")
}

func TestAllocationsOfPortsThatExistAreRestoredBeyondTheLimit(t *testing.T) {
	a := limited(t, 1)
	for i := range 3 {
		if err := a.Restore(fmt.Sprint("p", i), Allocation{Subnet: "s", Addresses: static(fmt.Sprintf("10.0.0.%d", i+2)).Addresses}); err != nil {
			t.Fatal(err)
		}
	}
	if u := a.Ports("s"); u.Used != 4 || !u.Full() {
		t.Errorf("usage is %+v", u)
	}
	a.Release("p0")
	if _, err := a.Allocate("new", static()); !errors.Is(err, ErrExhausted) {
		t.Errorf("a new holder beyond the limit: %v", err)
	}
}

func TestVirtualPortsCountForEachAddress(t *testing.T) {
	a := limited(t, 3)
	allocate(t, a, translate.VipHolder("x")) // dual stack: two virtual ports
	if _, err := a.Allocate(translate.VipHolder("y"), Request{Subnet: "s", Families: []ipfamily.Family{ipfamily.IPv4}}); !errors.Is(err, ErrExhausted) {
		t.Errorf("a holder on a full switch: %v", err)
	}
	a.Release(translate.VipHolder("x"))
	if u := a.Ports("s"); u.Used != 1 {
		t.Errorf("%d ports are left, want the subnet's own", u.Used)
	}
}

func TestAVipOfTwoFamiliesNeedsTwoFreePorts(t *testing.T) {
	a := limited(t, 2) // one port is free
	one := Request{Subnet: "s", Families: []ipfamily.Family{ipfamily.IPv4}}
	if _, err := a.Allocate(translate.VipHolder("x"), static()); !errors.Is(err, ErrExhausted) {
		t.Errorf("two ports for a switch with one free port: %v", err)
	}
	if _, err := a.Allocate(translate.VipHolder("x"), one); err != nil {
		t.Errorf("one port: %v", err)
	}
	both := Request{Subnet: "s", Families: []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6}}
	if _, err := a.Allocate(translate.VipHolder("x"), both); !errors.Is(err, ErrExhausted) {
		t.Errorf("a second port on a full switch: %v", err)
	}
	if allocation, held := a.Lookup(translate.VipHolder("x")); !held || len(allocation.Addresses) != 1 {
		t.Errorf("after the refusal the Vip has %v", allocation.Addresses)
	}
}

func TestHoldersWithoutAPortDoNotCount(t *testing.T) {
	for _, holder := range []string{translate.OvnEipHolder("x"), translate.QuerierHolder("s")} {
		a := limited(t, 2)
		allocate(t, a, holder)
		if u := a.Ports("s"); u.Used != 1 {
			t.Errorf("%s counts %d ports", holder, u.Used-1)
		}
		allocate(t, a, "a")
		a.Release(holder)
		a.LimitPorts(1) // fewer than there are
		allocate(t, a, holder)
		if u := a.Ports("s"); u.Used != 2 {
			t.Errorf("the switch has %d ports, 2 are left", u.Used)
		}
	}
}

func TestAChangedLimitIsReported(t *testing.T) {
	a := limited(t, 2)
	changes := map[string]int{}
	a.Notify(func(subnet string) { changes[subnet]++ })
	a.LimitPorts(2)
	if changes["s"] != 0 {
		t.Error("an unchanged limit is reported")
	}
	a.LimitPorts(20)
	if changes["s"] != 1 {
		t.Error("a new limit is not reported")
	}
}

// TestPortsAreCountedThroughAllChanges compares the count with the holders that exist and with the limit, after each of many random changes.
func TestPortsAreCountedThroughAllChanges(t *testing.T) {
	random := seed.Rand(seed.New(t), 0)
	a := limited(t, 12)
	if err := a.SetSubnet("other", spec(t, "10.9.0.0/24", "10.9.0.1")); err != nil {
		t.Fatal(err)
	}
	holders := []string{"a", "b", "c", "d", "e", "f", "vip/a", "vip/b", "vip/c", "eip/a", "eip/b"}
	families := [][]ipfamily.Family{nil, {ipfamily.IPv4}, {ipfamily.IPv6}}
	for range 2000 {
		holder := holders[random.IntN(len(holders))]
		switch random.IntN(4) {
		case 0:
			a.Release(holder)
		case 1:
			_, _ = a.Allocate(holder, Request{Subnet: "other"})
		default:
			_, _ = a.Allocate(holder, Request{Subnet: "s", Families: families[random.IntN(len(families))]})
		}
		want := 1
		for _, h := range holders {
			if allocation, ok := a.Lookup(h); ok && allocation.Subnet == "s" {
				want += portsFor(h, len(allocation.Addresses))
			}
		}
		if u := a.Ports("s"); u.Used != want {
			t.Fatalf("%d ports are counted, %d exist", u.Used, want)
		} else if u.Used > u.Limit {
			t.Fatalf("the switch has %d ports of %d", u.Used, u.Limit)
		}
	}
}
