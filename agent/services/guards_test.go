// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/knftables"
)

// guarded is a Service with many ports, each restricted to some clients.
func guarded(name string, address byte, ports int, ranges ...string) change {
	g := guardOf(&corev1.Service{Spec: corev1.ServiceSpec{LoadBalancerSourceRanges: ranges}}, families[0])
	c := change{service: types.NamespacedName{Namespace: "default", Name: name}}
	for i := range ports {
		c.pools = append(c.pools, pool{proto: "tcp", family: families[0], fronts: []front{
			{address: netip.AddrFrom4([4]byte{198, 51, 100, address}), port: uint16(1000 + i), external: true, guard: g},
		}, slots: []netip.AddrPort{netip.MustParseAddrPort("10.16.0.2:80")}})
	}
	return c
}

// Ports and Services with the same list of clients share one chain, which is deleted after its last use.
func TestListsOfClientsAreShared(t *testing.T) {
	nft, err := knftables.New(knftables.InetFamily, Table)
	if err != nil {
		t.Fatal(err)
	}
	var ranges []string
	for i := range 2000 {
		ranges = append(ranges, fmt.Sprintf("20.%d.%d.0/25", i>>8, i&255))
	}
	w := newWriter(nft)
	if err := w.rewrite(t.Context(), nil, []change{guarded("a", 1, 50, ranges...)}, nil); err != nil {
		t.Fatal(err)
	}
	guards := func() (names []string) {
		chains, err := w.chains(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range chains {
			if strings.HasPrefix(c.kind, kindGuard) {
				names = append(names, c.name())
			}
		}
		return names
	}
	d := wanting(w, guarded("b", 2, 10, append(ranges[1:], ranges[0], " 20.0.0.0/26")...)) // the same clients
	if n := len(d.come); n != 3*10 {
		t.Errorf("%d elements come, want three for each port", n)
	}
	if err := w.update(t.Context(), d, nil); err != nil {
		t.Fatal(err)
	}
	if names := guards(); len(names) != 1 {
		t.Errorf("chains %v of one list of clients", names)
	}
	agrees(t, w)
	for i := range spareChains + 2 { // a list that changes often
		if err := w.update(t.Context(), wanting(w, guarded("b", 2, 1, fmt.Sprintf("20.0.0.%d/32", i))), nil); err != nil {
			t.Fatal(err)
		}
	}
	if names := guards(); len(names) > spareChains || len(w.guards) > spareChains {
		t.Errorf("%d chains are left, and %d lists", len(names), len(w.guards))
	}
}

func TestGuards(t *testing.T) {
	of := func(ranges ...string) *guard {
		return guardOf(&corev1.Service{Spec: corev1.ServiceSpec{LoadBalancerSourceRanges: ranges}}, families[0])
	}
	if g := of(); g != nil {
		t.Errorf("without ranges: %+v", g)
	}
	for _, tt := range []struct {
		name   string
		ranges []string
		text   string
	}{
		{"one", []string{"192.0.2.0/24"}, "192.0.2.0/24"},
		{"blanks, bits behind the prefix, and a range within another", []string{" 192.0.2.5/24 ", "192.0.2.128/25"}, "192.0.2.0/24"},
		{"neighbours", []string{"192.0.3.0/24", "192.0.2.0/24"}, "192.0.2.0/23"},
		{"the other family only", []string{"2001:db8::/32"}, ""},
		{"not a range", []string{"a"}, ""},
	} {
		g := of(tt.ranges...)
		if g.text() != tt.text || (g.verdict() == verdictDrop) != (tt.text == "") {
			t.Errorf("%s: %q, %s; want %q", tt.name, g.text(), g.verdict(), tt.text)
		}
	}
	if a, b := of("192.0.2.0/24"), of("192.0.3.0/24"); a.chain == b.chain {
		t.Errorf("two lists have the chain %s", a.chain.name())
	}
}
