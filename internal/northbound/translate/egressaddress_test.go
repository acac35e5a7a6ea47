// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

func TestEgressAddressRows(t *testing.T) { rowsOf(t, "egressaddress-", EgressAddress) }

func TestEgressAddressesHaveARouterForEachSetOfAddresses(t *testing.T) {
	in := EgressAddressInputs{
		Name: "out", Sets: []string{"set"}, Node: "n1", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.40")}, NextHops: []netip.Addr{netip.MustParseAddr("100.64.0.2")},
		Joined: []netip.Addr{netip.MustParseAddr("100.64.0.9")}, Gateways: []netip.Addr{netip.MustParseAddr("100.64.0.1")},
	}
	router := func() (key, name string) {
		for _, row := range EgressAddress(in) {
			if r, is := row.Model.(*nb.LogicalRouter); is {
				return row.Key, r.Name
			}
		}
		return "", ""
	}
	key, name := router()
	in.Node = "n2"
	if k, n := router(); k != key || n != name {
		t.Errorf("on another node the router is %s %s, not %s %s", k, n, key, name)
	}
	in.Addresses[0] = in.Addresses[0].Next()
	if k, n := router(); k == key || n == name {
		t.Errorf("with another address the router is still %s %s, whose connections have the former one", k, n)
	}
}

func TestZonesOfEgressAddresses(t *testing.T) {
	in := EgressAddressInputs{Name: "out", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.40")}}
	used := map[int]bool{}
	next := func() int { return NewEgressZone(in.Router(), func(zone int) bool { return used[zone] }) }
	first := next()
	if again := next(); again != first {
		t.Errorf("the zone is %d, then %d", first, again)
	}
	for used[first] = true; len(used) < egressZones; {
		zone := next()
		if zone < 32768 || zone > 65534 || used[zone] {
			t.Fatalf("zone %d of %d, used: %t", zone, len(used), used[zone])
		}
		used[zone] = true
	}
	if zone := next(); zone != 0 {
		t.Errorf("all zones are used, and the next is %d", zone)
	}
	for text, want := range map[string]int{"32768": 32768, "65534": 65534, "32767": 0, "65535": 0, "x": 0, "": 0, "-40000": 0} {
		if zone := ReadEgressZone(&nb.LogicalRouter{Options: map[string]string{optionZone: text}}); zone != want {
			t.Errorf("option %q is zone %d, want %d", text, zone, want)
		}
	}
}

func TestTheAllocationOfAnEgressAddressIsRead(t *testing.T) {
	in := EgressAddressInputs{
		Name: "out", Sets: []string{"set"}, Node: "n1", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.40")}, NextHops: []netip.Addr{netip.MustParseAddr("100.64.0.2")},
		Joined: []netip.Addr{netip.MustParseAddr("100.64.0.9")}, Gateways: []netip.Addr{netip.MustParseAddr("100.64.0.1")},
	}
	var found []EgressAllocation
	for _, row := range EgressAddress(in) {
		if port, is := row.Model.(*nb.LogicalRouterPort); is {
			if a, ok := ReadEgressAllocation(desired.Owner{Kind: KindEgressAddress, Name: "out"}, port); ok {
				found = append(found, a)
			}
			port.Networks = []string{"nonsense"}
			if a, ok := ReadEgressAllocation(EgressAddressOwner("out"), port); ok {
				t.Errorf("a port that another client changed has the allocation %v", a)
			}
		}
	}
	if len(found) != 1 || found[0].Name != "out" || len(found[0].Addresses) != 1 || found[0].Addresses[0] != in.Joined[0] {
		t.Errorf("the allocations are %v", found)
	}
}

func TestThePolicyOfAnEgressAddressIsRead(t *testing.T) {
	for _, sets := range [][]string{{"one"}, {"one", "two"}} {
		in := EgressAddressInputs{Name: "out", Sets: sets, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.40"), netip.MustParseAddr("2001:db8::40")}}
		var families []string
		for _, row := range EgressAddress(in) {
			policy := row.Model.(*nb.LogicalRouterPolicy)
			names, family, ok := ReadEgressPolicy(policy)
			var want []string
			for _, set := range sets {
				want = append(want, setName(PeersRef(PodSetPart{Name: set}, ipfamily.Of(family))))
			}
			slices.Sort(want)
			if !ok || !slices.Equal(names, want) {
				t.Errorf("the policy %s has the sets %q, want %q", policy.Match, names, want)
			}
			families = append(families, family.String())
			policy.Priority++
			if _, _, ok := ReadEgressPolicy(policy); ok {
				t.Errorf("a policy of priority %d is read", policy.Priority)
			}
		}
		if !slices.Equal(families, []string{"0.0.0.0", "::"}) {
			t.Errorf("the families are %v", families)
		}
	}
}
