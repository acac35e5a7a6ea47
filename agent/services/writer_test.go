// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// many returns the desired state of n Services with one port and two endpoints each.
func many(n int) []change {
	var out []change
	for i := range n {
		at := front{address: netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)}), port: 80}
		out = append(out, change{
			service: types.NamespacedName{Namespace: "many", Name: fmt.Sprint(i)},
			pools: []pool{{proto: "tcp", family: families[0], fronts: []front{at}, slots: []netip.AddrPort{
				netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 16, byte(i >> 8), byte(i)}), 8080),
				netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 17, byte(i >> 8), byte(i)}), 8080),
			}}},
		})
	}
	return out
}

// large returns the desired state of a Service with n endpoints; if missing is set, without one in the middle.
func large(n int, missing bool, before []pool) change {
	var all []netip.AddrPort
	for i := range n {
		if !missing || i != n/2 {
			all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 18, byte(i >> 8), byte(i)}), 8080))
		}
	}
	p := pool{proto: "tcp", family: families[0], fronts: []front{{address: netip.MustParseAddr("10.98.0.1"), port: 80}, {port: 30080, external: true}}}
	var old []netip.AddrPort
	if len(before) > 0 {
		old = before[0].slots
	}
	p.slots, p.local = arrange(old, nil, all)
	return change{service: types.NamespacedName{Namespace: "large", Name: "large"}, pools: []pool{p}}
}

// A change of one endpoint changes few elements, also with 5,000 Services and 1,000 endpoints.
func TestOneEndpointIsAFewElements(t *testing.T) {
	for _, c := range []struct{ services, endpoints int }{{0, 10}, {5000, 1000}} {
		t.Run(fmt.Sprintf("%d Services, %d endpoints", c.services, c.endpoints), func(t *testing.T) {
			nft, err := knftables.New(knftables.InetFamily, Table)
			if err != nil {
				t.Fatal(err)
			}
			w := newWriter(nft)
			service := large(c.endpoints, false, nil)
			if err := w.rewrite(t.Context(), nil, append(many(c.services), service), nil); err != nil {
				t.Fatal(err)
			}
			for _, missing := range []bool{true, false} {
				d := wanting(w, large(c.endpoints, missing, w.have[service.service]))
				// Changed elements of each front: its chain, the slot of the last endpoint, and the slot that the endpoint moves to or
				// from.
				if n := len(d.gone) + len(d.come); n > 2*5 {
					t.Errorf("%d elements change: %v, %v", n, d.gone, d.come)
				}
				if err := w.update(t.Context(), d, nil); err != nil {
					t.Fatal(err)
				}
			}
			if !w.intact(t.Context()) {
				t.Error("the table is not as it was written")
			}
			agrees(t, w)
			nodetest.NFT(t, "flush table inet "+Table)
			if w.intact(t.Context()) {
				t.Error("a table that was flushed counts as intact")
			}
		})
	}
}

// agrees checks that the table has exactly the elements that a new writer would write.
func agrees(t *testing.T, w *writer) {
	t.Helper()
	want := map[string][]string{}
	for _, pools := range w.have {
		for i := range pools {
			pools[i].elements(func(e element, value string) { want[e.object] = append(want[e.object], e.key+" : "+value) })
		}
	}
	for object, elements := range want {
		kind := "map"
		if isSet(object) {
			kind = "set"
		}
		list, err := w.nft.ListElements(t.Context(), kind, object)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]string, 0, len(list))
		for _, e := range list {
			protocol := 0 // index in the keys of node ports, which have no address
			if _, err := netip.ParseAddr(e.Key[0]); err == nil {
				protocol = 1
			}
			e.Key[protocol] = protocolName(e.Key[protocol])
			got = append(got, strings.Join(e.Key, " . ")+" : "+strings.Join(e.Value, " . "))
		}
		slices.Sort(got)
		slices.Sort(elements)
		if diff := cmp.Diff(elements, got); diff != "" {
			t.Errorf("%s differs from the desired state (-):\n%s", object, diff)
		}
	}
}

// A Service that scales through many sizes leaves few chains.
func TestChainsOfOtherSizesGo(t *testing.T) {
	nft, err := knftables.New(knftables.InetFamily, Table)
	if err != nil {
		t.Fatal(err)
	}
	w := newWriter(nft)
	if err := w.rewrite(t.Context(), nil, nil, nil); err != nil {
		t.Fatal(err)
	}
	for n := range 100 {
		d := wanting(w, large(n, false, nil))
		if err := w.update(t.Context(), d, nil); err != nil {
			t.Fatal(err)
		}
	}
	chains, err := w.chains(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(chains) > spareChains+2 {
		t.Errorf("%d chains are left", len(chains))
	}
}

// Clients of a front that a Service gives up are affected, also if the Service gets another front instead.
func TestAffectedFronts(t *testing.T) {
	endpoint := netip.MustParseAddrPort("10.16.0.2:53")
	service := func(proto string, fronts ...string) change {
		p := pool{port: "dns", proto: proto, family: families[0], slots: []netip.AddrPort{endpoint}, affinity: 60}
		for _, text := range fronts {
			at := netip.MustParseAddrPort(text)
			p.family = families[at.Addr().BitLen()/128]
			f := front{address: at.Addr(), port: at.Port(), external: true}
			if at.Addr().IsUnspecified() {
				f.address = netip.Addr{} // a node port
			}
			p.fronts = append(p.fronts, f)
		}
		return change{service: types.NamespacedName{Namespace: "default", Name: "dns"}, pools: []pool{p}}
	}
	for name, c := range map[string]struct {
		before, after change
		lost          string // front
		affected      bool
	}{
		"nothing changes":       {service("udp", "192.0.2.1:53"), service("udp", "192.0.2.1:53"), "192.0.2.1:53", false},
		"another address":       {service("udp", "192.0.2.1:53"), service("udp", "192.0.2.2:53"), "192.0.2.1:53", true},
		"another IPv6 address":  {service("udp", "[2001:db8::1]:53"), service("udp", "[2001:db8::2]:53"), "[2001:db8::1]:53", true},
		"another port":          {service("udp", "192.0.2.1:53"), service("udp", "192.0.2.1:54"), "192.0.2.1:53", true},
		"another node port":     {service("udp", "0.0.0.0:30053"), service("udp", "0.0.0.0:30054"), "192.0.2.1:30053", true},
		"another protocol":      {service("udp", "192.0.2.1:53"), service("tcp", "192.0.2.1:53"), "192.0.2.1:53", true},
		"a front moves in list": {service("udp", "192.0.2.1:53", "192.0.2.2:53"), service("udp", "192.0.2.2:53", "192.0.2.1:53"), "192.0.2.1:53", false},
	} {
		t.Run(name, func(t *testing.T) {
			udp, sticky := affected(map[types.NamespacedName][]pool{c.before.service: c.before.pools}, []change{c.after}, false)
			at := place{c.before.pools[0].family, "udp", netip.MustParseAddrPort(c.lost)}
			local := addresses{single: map[netip.Addr]bool{netip.MustParseAddr("192.0.2.1"): true}}
			if udp.lost(at, endpoint, local) != c.affected || sticky.lost(at, endpoint, local) != c.affected {
				t.Errorf("affected are %v and, by affinity, %v; want the clients of %s to be affected: %t", udp, sticky, c.lost, c.affected)
			}
		})
	}
}
