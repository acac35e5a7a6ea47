// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// spec builds a Subnet from the forms of the API.
func spec(t testing.TB, cidrs, gateways string, exclude ...string) Subnet {
	t.Helper()
	var s Subnet
	var err error
	if s.CIDRs, err = ipfamily.ParseCIDRs(cidrs); err != nil {
		t.Fatal(err)
	}
	if s.Gateways, err = ipfamily.ParseAddrs(gateways); err != nil {
		t.Fatal(err)
	}
	if s.Exclude, err = ipfamily.ParseRanges(exclude); err != nil {
		t.Fatal(err)
	}
	return s
}

// with returns an allocator with this subnet, named "s".
func with(t testing.TB, s Subnet) *Allocator {
	t.Helper()
	a := New()
	if err := a.SetSubnet("s", s); err != nil {
		t.Fatal(err)
	}
	return a
}

func allocate(t testing.TB, a *Allocator, port string, addresses ...string) string {
	t.Helper()
	l, err := a.Allocate(port, static(addresses...))
	if err != nil {
		t.Fatalf("allocate %s: %v", port, err)
	}
	return ipfamily.Join(l.Addresses)
}

func static(addresses ...string) Request {
	r := Request{Subnet: "s"}
	for _, s := range addresses {
		r.Addresses = append(r.Addresses, netip.MustParseAddr(s))
	}
	return r
}

func mac(s string) net.HardwareAddr {
	m, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

func TestEveryAddressIsGivenOnceInOrder(t *testing.T) {
	tests := []struct {
		name, cidrs, gateways string
		exclude               []string
		want                  string
	}{
		{name: "network, broadcast and gateway are never given", cidrs: "10.0.0.0/29", gateways: "10.0.0.1",
			want: "10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.5 10.0.0.6"},
		{name: "excluded ranges are passed over, also overlapping and outside ones", cidrs: "10.0.0.0/29", gateways: "10.0.0.6",
			exclude: []string{"10.0.0.2..10.0.0.3", "10.0.0.3", "10.0.1.1..10.0.1.9", "9.255.255.255..10.0.0.1"}, want: "10.0.0.4 10.0.0.5"},
		{name: "a /30 has one address besides its gateway", cidrs: "10.0.0.0/30", gateways: "10.0.0.1", want: "10.0.0.2"},
		{name: "a /31 has two addresses", cidrs: "10.0.0.0/31", want: "10.0.0.0 10.0.0.1"},
		{name: "a /32 has one", cidrs: "10.0.0.5/32", want: "10.0.0.5"},
		{name: "a /32 that is the gateway has none", cidrs: "10.0.0.5/32", gateways: "10.0.0.5"},
		{name: "the end of the address space does not wrap", cidrs: "255.255.255.252/30", want: "255.255.255.253 255.255.255.254"},
		{name: "the subnet-router anycast address is never given", cidrs: "fd00::/126", gateways: "fd00::1", want: "fd00::2 fd00::3"},
		{name: "a /127 has two addresses", cidrs: "fd00::/127", want: "fd00:: fd00::1"},
		{name: "a /128 has one", cidrs: "fd00::7/128", want: "fd00::7"},
		{name: "everything excluded leaves nothing", cidrs: "10.0.0.0/29", exclude: []string{"10.0.0.0/8"}},
		{name: "the smaller family ends a dual-stack subnet", cidrs: "10.0.0.0/30,fd00::/64", gateways: "10.0.0.1,fd00::1", want: "10.0.0.2,fd00::2"},
		{name: "allocations keep the order of the CIDRs", cidrs: "fd00::/64,10.0.0.0/30", gateways: "fd00::1,10.0.0.2", want: "fd00::2,10.0.0.1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := with(t, spec(t, tt.cidrs, tt.gateways, tt.exclude...))
			var got []string
			for i := 0; ; i++ {
				l, err := a.Allocate(fmt.Sprint("p", i), Request{Subnet: "s"})
				if err != nil {
					if !errors.Is(err, ErrExhausted) {
						t.Fatal(err)
					}
					break
				}
				got = append(got, ipfamily.Join(l.Addresses))
			}
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("got %s, want %s", s, tt.want)
			}
		})
	}
}

func TestReleasedAddressesComeLastAndInOrder(t *testing.T) {
	a := with(t, spec(t, "10.0.0.0/29", "10.0.0.1"))
	for _, port := range []string{"a", "b", "c"} {
		allocate(t, a, port)
	}
	a.Release("b")
	a.Release("a")
	a.Release("a")
	for i, want := range []string{"10.0.0.5", "10.0.0.6", "10.0.0.3", "10.0.0.2"} {
		if got := allocate(t, a, fmt.Sprint("n", i)); got != want {
			t.Errorf("allocation %d: got %s, want %s", i, got, want)
		}
	}
}

func TestComingAndGoingInALargeSubnetTakesBoundedMemory(t *testing.T) {
	a := with(t, spec(t, "fd00::/64", "fd00::1"))
	first := ""
	for i := range 3 * keepReleased {
		addr := allocate(t, a, "p")
		if i == 0 {
			first = addr
		}
		if i > 0 && i <= keepReleased/2 && addr == first {
			t.Fatalf("%s was given again after %d others", addr, i)
		}
		a.Release("p")
	}
	if n := len(a.subnet("s").pools[ipfamily.IPv6].slots); n > keepReleased {
		t.Errorf("%d slots for one address held at a time", n)
	}
}

func TestRefusals(t *testing.T) {
	dual := spec(t, "10.0.0.0/24,fd00::/64", "10.0.0.1,fd00::1", "10.0.0.10..10.0.0.20")
	tests := []struct {
		name string
		r    Request
		err  string
	}{
		{name: "an unknown subnet", r: Request{Subnet: "none"}, err: "no such subnet"},
		{name: "a held address", r: static("10.0.0.2"), err: "address 10.0.0.2 is taken by held"},
		{name: "the gateway", r: static("fd00::1"), err: "address fd00::1 is taken by gateway"},
		{name: "the network address", r: static("10.0.0.0"), err: "address 10.0.0.0 is not one that a port of subnet s (10.0.0.0/24,fd00::/64) can have"},
		{name: "the broadcast address", r: static("10.0.0.255"), err: "is not one that"},
		{name: "the anycast address", r: static("fd00::"), err: "is not one that"},
		{name: "an address elsewhere", r: static("10.1.0.2"), err: "is not one that"},
		{name: "two of one family", r: static("10.0.0.3", "10.0.0.4"), err: "more than one address of a family"},
		{name: "a held MAC address", r: Request{Subnet: "s", MAC: mac("06:4b:0a:00:00:02")}, err: "MAC address 06:4b:0a:00:00:02 is taken by held"},
		{name: "the gateway's MAC address", r: Request{Subnet: "s", MAC: mac("06:4b:0a:00:00:01")}, err: "is taken by gateway"},
		{name: "a long MAC address", r: Request{Subnet: "s", MAC: mac("00:00:5e:00:53:01:00:00")}, err: "is not a MAC address of 48 bits"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := with(t, dual)
			allocate(t, a, "held")
			before := a.Usage("s")
			_, err := a.Allocate("p", tt.r)
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("got error %v, want %q", err, tt.err)
			}
			if _, ok := a.Lookup("p"); ok || a.Usage("s") != before {
				t.Error("a refused request must change nothing")
			}
		})
	}
	a := with(t, spec(t, "10.0.0.0/24", ""))
	if _, err := a.Allocate("p", Request{Subnet: "s", Families: []ipfamily.Family{ipfamily.IPv6}}); !errors.Is(err, ErrNoFamily) {
		t.Errorf("a family that the subnet lacks: got %v", err)
	}
	var taken *TakenError
	allocate(t, a, "x", "10.0.0.9")
	if _, err := a.Allocate("p", static("10.0.0.9")); !errors.As(err, &taken) || taken.By != "x" {
		t.Errorf("the error must name the address's holder: %v", err)
	}
}

func TestDualStackIsAllOrNothing(t *testing.T) {
	a := with(t, spec(t, "10.0.0.0/24,fd00::/127", ""))
	allocate(t, a, "a")
	allocate(t, a, "b")
	if _, err := a.Allocate("c", Request{Subnet: "s"}); !errors.Is(err, ErrExhausted) {
		t.Fatalf("got %v, want exhausted", err)
	}
	if u := a.Usage("s"); u.IPv4().Using != 2 || u.IPv4().Available != 252 {
		t.Errorf("the IPv4 address was not given back: %+v", u.IPv4())
	}
	l, err := a.Allocate("c", Request{Subnet: "s", Families: []ipfamily.Family{ipfamily.IPv4}})
	if err != nil || ipfamily.Join(l.Addresses) == "" || len(l.Addresses) != 1 {
		t.Errorf("one family is still to be had: %v %v", l, err)
	}
}

func TestAllocateIsIdempotentUntilTheRequestChanges(t *testing.T) {
	a := with(t, spec(t, "10.0.0.0/24,fd00::/64", "10.0.0.1,fd00::1", "10.0.0.200"))
	if err := a.SetSubnet("t", spec(t, "10.9.0.0/24", "")); err != nil {
		t.Fatal(err)
	}
	changes := 0
	a.Notify(func(string) { changes++ })
	v6 := Request{Subnet: "s", Families: []ipfamily.Family{ipfamily.IPv6}}
	withMAC := Request{Subnet: "s", MAC: mac("02:00:00:00:00:01")}
	steps := []struct {
		name    string
		r       Request
		want    string
		changes int
	}{
		{"the first request", static(), "10.0.0.2,fd00::2", 1},
		{"the same again", static(), "10.0.0.2,fd00::2", 0},
		{"its own addresses, requested by name", static("fd00::2"), "10.0.0.2,fd00::2", 0},
		{"an excluded address by name", static("10.0.0.200"), "10.0.0.200,fd00::3", 1},
		{"one family", v6, "fd00::4", 1},
		{"a MAC address", withMAC, "fd00::4", 1},
		{"another subnet", Request{Subnet: "t"}, "10.9.0.1", 2},
	}
	for _, step := range steps {
		before := changes
		l, err := a.Allocate("p", step.r)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		got := ipfamily.Join(l.Addresses)
		if step.name == "a MAC address" {
			if l.MAC.String() != "02:00:00:00:00:01" || len(l.Addresses) != 2 {
				t.Errorf("%s: got %v", step.name, l)
			}
		} else if got != step.want {
			t.Errorf("%s: got %s, want %s", step.name, got, step.want)
		}
		if changes-before != step.changes {
			t.Errorf("%s: %d notifications, want %d", step.name, changes-before, step.changes)
		}
	}
	if u := a.Usage("s"); u.IPv4().Using != 0 || u.IPv6().Using != 0 {
		t.Errorf("the first subnet must be free: %+v", u)
	}
}

func TestAFailedReplacementKeepsTheOldAllocation(t *testing.T) {
	a := with(t, spec(t, "10.0.0.0/24,fd00::/64", "10.0.0.1,fd00::1", "10.0.0.200"))
	allocate(t, a, "other", "10.0.0.9")
	allocate(t, a, "p", "10.0.0.200")
	want, _ := a.Lookup("p")
	if _, err := a.Allocate("p", static("10.0.0.9")); err == nil {
		t.Fatal("a held address was given twice")
	}
	if got, _ := a.Lookup("p"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	a.Release("p")
	if u := a.Usage("s"); u.IPv4().Using != 1 || u.IPv6().Using != 1 {
		t.Errorf("release after a failed replacement left something held: %+v", u)
	}
}

func TestMACsFollowFromAddresses(t *testing.T) {
	a := with(t, spec(t, "10.16.0.0/16", "10.16.0.1"))
	l, err := a.Allocate("p", Request{Subnet: "s"})
	if err != nil || l.MAC.String() != "06:4b:0a:10:00:02" {
		t.Errorf("got %v, %v", l.MAC, err)
	}
	six := New()
	if err := six.SetSubnet("s", spec(t, "fd00::/64", "")); err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr("fd00::1")
	first, second := ipfamily.MAC(addr, 0), ipfamily.MAC(addr, 1)
	if _, err := six.Allocate("thief", Request{Subnet: "s", Addresses: []netip.Addr{netip.MustParseAddr("fd00::99")}, MAC: first[:]}); err != nil {
		t.Fatal(err)
	}
	l, err = six.Allocate("p", Request{Subnet: "s"})
	if err != nil || l.MAC.String() != net.HardwareAddr(second[:]).String() {
		t.Errorf("a taken MAC address must give the next candidate: got %v, %v", l.MAC, err)
	}
	six.Release("thief")
	if _, err := six.Allocate("q", Request{Subnet: "s", MAC: first[:]}); err != nil {
		t.Errorf("a released MAC address must be free: %v", err)
	}
	if first[0]&3 != 2 || first == second {
		t.Errorf("%x and %x must be locally administered, unicast and different", first, second)
	}
}

func TestRestoreTakesAddressesAsTheyAre(t *testing.T) {
	a := with(t, spec(t, "10.0.0.0/24", "10.0.0.1", "10.0.0.50"))
	allocation := func(addr, m string) Allocation {
		return Allocation{Subnet: "s", Addresses: []netip.Addr{netip.MustParseAddr(addr)}, MAC: mac(m)}
	}
	shared := "02:00:00:00:00:01"
	for port, l := range map[string]Allocation{
		"excluded": allocation("10.0.0.50", shared),
		"outside":  allocation("10.9.0.1", shared),
		"six":      allocation("fd00::5", "02:00:00:00:00:03"),
		"high":     allocation("10.0.0.99", "02:00:00:00:00:04"),
		"nomac":    {Subnet: "s", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.98")}},
	} {
		if err := a.Restore(port, l); err != nil {
			t.Fatal(err)
		}
		if err := a.Restore(port, l); err != nil {
			t.Fatalf("again: %v", err)
		}
		if got, ok := a.Lookup(port); !ok || fmt.Sprint(got) != fmt.Sprint(l) {
			t.Errorf("got %v, want %v", got, l)
		}
	}
	var taken *TakenError
	if err := a.Restore("late", allocation("10.0.0.50", "02:00:00:00:00:09")); !errors.As(err, &taken) || taken.By != "excluded" {
		t.Errorf("got %v, want taken by excluded", err)
	}
	if err := a.Restore("late", Allocation{Subnet: "none"}); !errors.Is(err, ErrNoSubnet) {
		t.Errorf("got %v, want no such subnet", err)
	}
	if got := allocate(t, a, "new"); got != "10.0.0.100" {
		t.Errorf("got %s: fresh addresses begin after the highest restored one", got)
	}
}
