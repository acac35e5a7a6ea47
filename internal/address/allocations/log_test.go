// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package allocations

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/go-logr/logr/funcr"

	"github.com/kiln-net/kiln/internal/address/ipam"
)

func TestSourceOf(t *testing.T) {
	address := []netip.Addr{netip.MustParseAddr("10.16.0.9")}
	for want, request := range map[Source]ipam.Request{
		SourceSubnet:      {Subnet: "a"},
		SourcePool:        {Subnet: "a", Pools: []string{"web"}},
		SourceRequest:     {Subnet: "a", Pools: []string{"web"}, Addresses: address},
		SourceVip:         {Subnet: "a", Addresses: address, SharedBy: "vip"},
		SourceReservation: {Subnet: "a", Addresses: address, AnyPool: true},
	} {
		if got := SourceOf(request); got != want {
			t.Errorf("%+v: got %s, want %s", request, got, want)
		}
	}
}

func TestAllocationsAreLoggedAtVerbosity1(t *testing.T) {
	allocator := ipam.New()
	if err := allocator.SetSubnet("a", ipam.Subnet{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.16.0.0/24")}}); err != nil {
		t.Fatal(err)
	}
	for verbosity, want := range [][]string{nil, {
		`"level"=1 "msg"="gave addresses to a port" "port"="web\n.shop" "subnet"="a" "addresses"="10.16.0.1" "source"="subnet"`,
		`"level"=1 "msg"="retained the addresses of a port" "port"="web\n.shop" "subnet"="a" "addresses"="10.16.0.1" "reason"="for a StatefulSet"`,
		`"level"=1 "msg"="freed the addresses of a port" "port"="web\n.shop" "subnet"="a" "addresses"="10.16.0.1" "reason"="its pod is deleted"`,
	}} {
		var lines []string
		log := funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{Verbosity: verbosity})
		const port = "web\n.shop"
		allocation := ipam.Allocation{Subnet: "a", Addresses: []netip.Addr{netip.MustParseAddr("10.16.0.1")}}
		if err := allocator.Restore(port, allocation); err != nil {
			t.Fatal(err)
		}
		LogGiven(log, port, allocation, SourceSubnet)
		LogRetained(log, port, allocation, "for a StatefulSet")
		for range 2 { // the second one frees nothing
			Release(log, allocator, port, "its pod is deleted")
		}
		if !slices.Equal(lines, want) {
			t.Errorf("verbosity %d: %q", verbosity, lines)
		}
		if _, held := allocator.Lookup(port); held {
			t.Error("the port has its allocation")
		}
	}
}
