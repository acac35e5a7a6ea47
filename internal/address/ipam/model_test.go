// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/testing/seed"
)

// model is a naive implementation of the allocator: the holder of each address, and the configuration of the subnet.
type model struct {
	subnet Subnet
	pools  []Pool
	holder map[netip.Addr]string
	ports  map[string][]netip.Addr
}

func (m *model) usable(addr netip.Addr) bool {
	return slices.ContainsFunc(m.subnet.CIDRs, func(c netip.Prefix) bool {
		if c.Addr().BitLen()-c.Bits() < 2 {
			return c.Contains(addr)
		}
		return c.Contains(addr) && addr != c.Addr() && (addr.Is6() || addr != ipfamily.LastAddr(c))
	}) && !slices.Contains(m.subnet.Gateways, addr)
}

func (m *model) excluded(addr netip.Addr) bool {
	return slices.ContainsFunc(m.subnet.Exclude, func(r ipfamily.Range) bool { return r.Contains(addr) })
}

// poolOf returns the first pool with an address.
func (m *model) poolOf(addr netip.Addr) string {
	for _, p := range m.pools {
		if slices.ContainsFunc(p.Ranges, func(r ipfamily.Range) bool { return r.Contains(addr) }) {
			return p.Name
		}
	}
	return ""
}

// meant lists the pools from which a request gets addresses of a family. The empty name stands for the addresses of no pool. A
// pool has a family if its ranges, the spec.ips of the IPPool, have addresses of the family, even if excludeIps or an older
// pool takes all of them (docs/user/addresses.md, Pools).
func (m *model) meant(r Request, family ipfamily.Family) []string {
	var with []string
	for _, p := range m.pools {
		hasFamily := slices.ContainsFunc(p.Ranges, func(r ipfamily.Range) bool { return ipfamily.Of(r.From) == family })
		if hasFamily && slices.Contains(r.Pools, p.Name) {
			with = append(with, p.Name)
		}
	}
	if with == nil {
		return []string{""}
	}
	return with
}

// free counts the addresses available without an explicit request, by a check of each address of small subnets.
func (m *model) free(family ipfamily.Family) int {
	return m.count(family, func(a netip.Addr) bool { return m.holder[a] == "" })
}

func (m *model) count(family ipfamily.Family, meant func(netip.Addr) bool) (n int) {
	for _, c := range m.subnet.CIDRs {
		if ipfamily.Of(c.Addr()) != family {
			continue
		}
		for addr := c.Addr(); c.Contains(addr); addr = addr.Next() {
			if m.usable(addr) && !m.excluded(addr) && meant(addr) {
				n++
			}
		}
	}
	return n
}

func (m *model) release(port string) {
	for _, addr := range m.ports[port] {
		delete(m.holder, addr)
	}
	delete(m.ports, port)
}

func (m *model) hold(t *testing.T, port string, l Allocation) {
	t.Helper()
	m.release(port)
	for _, addr := range l.Addresses {
		if by := m.holder[addr]; by != "" {
			t.Fatalf("%s got %s, which %s holds", port, addr, by)
		}
		m.holder[addr] = port
	}
	m.ports[port] = l.Addresses
}

// shapes are small subnets to switch between; all contain 10.0.0.0/28.
func shapes(t *testing.T) []Subnet {
	return []Subnet{
		spec(t, "10.0.0.0/28", "10.0.0.1"),
		spec(t, "10.0.0.0/27", "10.0.0.1", "10.0.0.4..10.0.0.9", "10.0.0.30"),
		spec(t, "10.0.0.0/28,fd00::/124", "10.0.0.14,fd00::1", "fd00::8..fd00::f"),
		spec(t, "fd00::/125,10.0.0.0/26", "fd00::7", "10.0.0.2..10.0.0.63"),
	}
}

// divisions are sets of pools; a and b overlap in the last.
func divisions() [][]Pool {
	ranges := func(list ...string) []ipfamily.Range {
		parsed, err := ipfamily.ParseRanges(list)
		if err != nil {
			panic(err)
		}
		return parsed
	}
	return [][]Pool{
		nil,
		{{Name: "a", Ranges: ranges("10.0.0.2..10.0.0.5", "fd00::2..fd00::3")}},
		{{Name: "b", Ranges: ranges("10.0.0.1..10.0.0.3", "10.0.0.12/30")}, {Name: "a", Ranges: ranges("10.0.0.4..10.0.0.6")}},
		{{Name: "a", Ranges: ranges("10.0.0.2..10.0.0.8")}, {Name: "b", Ranges: ranges("10.0.0.6..10.0.0.40", "fd00::/124")}},
	}
}

// play runs one operation per byte pair on the allocator and the model, and compares their visible state.
func play(t *testing.T, ops []byte) {
	all := shapes(t)
	m := &model{subnet: all[0], holder: map[netip.Addr]string{}, ports: map[string][]netip.Addr{}}
	a := with(t, all[0])
	for ; len(ops) >= 2; ops = ops[2:] {
		port, arg := fmt.Sprint("p", ops[0]>>3), ops[1]
		switch ops[0] & 7 {
		case 0:
			step(t, a, m, port, Request{Subnet: "s"})
		case 1:
			step(t, a, m, port, Request{Subnet: "s", Pools: []string{"a"}})
		case 2:
			step(t, a, m, port, Request{Subnet: "s", Pools: []string{"b", "a"}[arg&1:]})
		case 3:
			address := netip.AddrFrom4([4]byte{10, 0, 0, arg & 63})
			step(t, a, m, port, Request{Subnet: "s", Addresses: []netip.Addr{address}, AnyPool: arg&64 != 0})
		case 4:
			step(t, a, m, port, Request{Subnet: "s", Families: []ipfamily.Family{ipfamily.Family(arg & 1)}})
		case 5, 6:
			a.Release(port)
			m.release(port)
		case 7:
			m.subnet, m.pools = all[int(arg)%len(all)], divisions()[arg>>2&3]
			if err := errors.Join(a.SetSubnet("s", m.subnet), a.SetPools("s", m.pools)); err != nil {
				t.Fatal(err)
			}
		}
		compare(t, a, m)
	}
	for port := range maps.Clone(m.ports) {
		a.Release(port)
		m.release(port)
	}
	compare(t, a, m)
}

func step(t *testing.T, a *Allocator, m *model, port string, r Request) {
	t.Helper()
	l, err := a.Allocate(port, r)
	if err == nil {
		for _, addr := range l.Addresses {
			asked, had := slices.Contains(r.Addresses, addr), m.holder[addr] == port
			if !had && (!m.usable(addr) || !asked && m.excluded(addr)) {
				t.Fatalf("%s got %s, which it cannot have", port, addr)
			}
			if !asked && !had && !slices.Contains(m.meant(r, ipfamily.Of(addr)), m.poolOf(addr)) {
				t.Fatalf("%s got %s of pool %q, it asked for %q", port, addr, m.poolOf(addr), r.Pools)
			}
		}
		m.hold(t, port, l)
		return
	}
	if errors.Is(err, ErrNoPool) && slices.ContainsFunc(r.Pools, func(name string) bool {
		return !slices.ContainsFunc(m.pools, func(p Pool) bool { return p.Name == name })
	}) {
		return
	}
	if errors.Is(err, ErrExhausted) {
		for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
			meant := m.meant(r, family)
			// The port's own previous addresses are free for it, too, if they satisfy its request.
			left := m.count(family, func(a netip.Addr) bool {
				return slices.Contains(meant, m.poolOf(a)) && (m.holder[a] == "" || m.holder[a] == port)
			})
			if left == 0 {
				return
			}
		}
		t.Fatalf("%v, but there are free addresses", err)
	}
	for _, addr := range r.Addresses {
		if !m.excluded(addr) && m.poolOf(addr) != "" && !r.AnyPool {
			return
		}
		if m.usable(addr) && (m.holder[addr] == "" || m.holder[addr] == port) {
			t.Fatalf("%v, but %s is free", err, addr)
		}
	}
}

func compare(t *testing.T, a *Allocator, m *model) {
	t.Helper()
	u := a.Usage("s")
	using := [2]int{}
	for addr := range m.holder {
		using[ipfamily.Of(addr)]++
	}
	for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
		if u[family].Using != float64(using[family]) || u[family].Available != float64(m.free(family)) {
			t.Fatalf("%s: allocator says %+v; %d are used and %d free", family, u[family], using[family], m.free(family))
		}
	}
	for _, p := range m.pools {
		usage := a.PoolUsage("s", p.Name)
		for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
			used := 0
			for addr := range m.holder {
				of := m.poolOf(addr) == p.Name
				if m.excluded(addr) || !m.usable(addr) { // no pool has it, but it is still used
					of = ipfamily.InAny(p.Ranges, addr)
				}
				if of && ipfamily.Of(addr) == family {
					used++
				}
			}
			free := m.count(family, func(a netip.Addr) bool { return m.poolOf(a) == p.Name && m.holder[a] == "" })
			if usage[family].Available != float64(free) || usage[family].Using != float64(used) {
				t.Fatalf("pool %s, %s: allocator says %+v; %d are used and %d free", p.Name, family, usage[family], used, free)
			}
		}
	}
	for port, want := range m.ports {
		if l, ok := a.Lookup(port); !ok || !sameAddresses(l.Addresses, want) {
			t.Fatalf("%s holds %v, want %v", port, l.Addresses, want)
		}
	}
}

func sameAddresses(a, b []netip.Addr) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(x netip.Addr) bool { return !slices.Contains(b, x) })
}

func TestAllocatorAgreesWithTheModel(t *testing.T) {
	seed.Histories(t, []uint64{0}, 200, func(t *testing.T, _ uint64, random *rand.Rand) {
		ops := make([]byte, 600)
		for i := range ops {
			ops[i] = byte(random.Uint32())
		}
		play(t, ops)
	})
}

func TestAvoidedAddressesAreGivenToOthers(t *testing.T) {
	a := with(t, spec(t, "10.0.0.0/29", "10.0.0.1"))
	odd := func(addr netip.Addr) bool { return addr.As4()[3]&1 == 1 }
	for i := range 5 {
		port := fmt.Sprint("p", i)
		l, err := a.Allocate(port, Request{Subnet: "s", Avoid: odd})
		if even := i < 3; even != (err == nil) || even && odd(l.Addresses[0]) {
			t.Errorf("%s got %v, error %v", port, l.Addresses, err)
		}
		if i >= 3 {
			if l, err := a.Allocate(port, Request{Subnet: "s"}); err != nil || !odd(l.Addresses[0]) {
				t.Errorf("%s got %v, error %v", port, l.Addresses, err)
			}
		}
	}
}

// A subnet of a custom VPC may have the same addresses as a subnet of the default VPC with thousands of pods.
func TestAddressesAreFoundAmongManyToAvoid(t *testing.T) {
	for _, tt := range []struct {
		name, cidr  string
		avoid, come int
	}{
		{"once the cursor has been everywhere", "10.0.0.0/22", 2 * maxAvoided, 2000},
		{"beyond the remembered ones", "10.0.0.0/16", keepReleased + 2*maxAvoided, 100},
		{"once many have been released", "10.0.0.0/16", 2 * maxAvoided, 2 * keepReleased},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := with(t, spec(t, tt.cidr, ""))
			avoid := func(addr netip.Addr) bool {
				b := addr.As4()
				return int(b[2])<<8+int(b[3]) <= tt.avoid
			}
			for i := range tt.come {
				var l Allocation
				err := ErrExhausted
				for try := 0; try < 16 && errors.Is(err, ErrExhausted); try++ {
					l, err = a.Allocate("p", Request{Subnet: "s", Avoid: avoid})
				}
				if err != nil || avoid(l.Addresses[0]) {
					t.Fatalf("port %d got %v, error %v", i, l.Addresses, err)
				}
				a.Release("p")
			}
			if n := len(a.subnet("s").pools[ipfamily.IPv4].slots); n > 2*keepReleased {
				t.Errorf("%d addresses are remembered", n)
			}
		})
	}
}

func FuzzAllocator(f *testing.F) {
	f.Add([]byte{0, 0, 7, 2, 8, 0, 3, 5, 5, 0, 7, 1, 4, 1})
	f.Fuzz(play)
}

// With many goroutines on few addresses, every address has at most one port, and all addresses are released in the end.
func TestParallelUse(t *testing.T) {
	a := with(t, spec(t, "10.0.0.0/26,fd00::/64", "10.0.0.1,fd00::1"))
	if err := a.SetSubnet("u", spec(t, "10.1.0.0/16", "")); err != nil {
		t.Fatal(err)
	}
	a.Notify(func(string) {})
	var held sync.Map
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for i := range 2000 {
				port := fmt.Sprint(worker, "-", i%16)
				l, err := a.Allocate(port, Request{Subnet: []string{"s", "u"}[i%2]})
				if err != nil {
					continue
				}
				for _, addr := range l.Addresses {
					if by, taken := held.LoadOrStore(addr, port); taken {
						t.Errorf("%s is held by %s and %s", addr, by, port)
					}
				}
				a.Lookup(port)
				if i%100 == 0 {
					a.Usage("s")
				}
				for _, addr := range l.Addresses {
					held.Delete(addr)
				}
				a.Release(port)
			}
		})
	}
	wg.Wait()
	for _, name := range []string{"s", "u"} {
		if u := a.Usage(name); u.IPv4().Using != 0 || u.IPv6().Using != 0 {
			t.Errorf("subnet %s still holds %+v", name, u)
		}
	}
}
