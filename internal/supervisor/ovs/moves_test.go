// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func prefixes(list ...string) []netip.Prefix {
	var parsed []netip.Prefix
	for _, s := range list {
		parsed = append(parsed, netip.MustParsePrefix(s))
	}
	return parsed
}

func via(destination, gateway string) route {
	r := route{Family: 4}
	if destination != "default" {
		r.Destination = netip.MustParsePrefix(destination)
	}
	if gateway != "" {
		r.Gateway = netip.MustParseAddr(gateway)
	}
	return r
}

func TestPlanMoves(t *testing.T) {
	both := prefixes("192.0.2.1/24", "2001:db8::1/64")
	tests := []struct {
		name string
		memory
		observed
		want moves
	}{
		{
			name:     "the first time, everything moves",
			observed: observed{uplinkAddresses: both, uplinkRoutes: []route{via("default", "192.0.2.254"), via("198.51.100.0/24", "")}},
			want: moves{
				memory: memory{
					Uplink: "eth1", Addresses: both,
					Routes: []route{via("198.51.100.0/24", ""), via("default", "192.0.2.254")},
				},
				addAddresses: both, addRoutes: []route{via("198.51.100.0/24", ""), via("default", "192.0.2.254")},
				clearAddresses: both, clearRoutes: []route{via("default", "192.0.2.254"), via("198.51.100.0/24", "")},
			},
		},
		{
			name:     "when all is done, there is nothing to do",
			memory:   memory{Uplink: "eth1", Addresses: both, Routes: []route{via("default", "192.0.2.254")}},
			observed: observed{bridgeAddresses: both, bridgeRoutes: []route{via("default", "192.0.2.254")}},
			want:     moves{memory: memory{Uplink: "eth1", Addresses: both, Routes: []route{via("default", "192.0.2.254")}}},
		},
		{
			name:   "a new tap gets everything back",
			memory: memory{Uplink: "eth1", Addresses: both, Routes: []route{via("default", "192.0.2.254")}},
			want: moves{
				memory:       memory{Uplink: "eth1", Addresses: both, Routes: []route{via("default", "192.0.2.254")}},
				addAddresses: both, addRoutes: []route{via("default", "192.0.2.254")},
			},
		},
		{
			name:     "after an interruption it continues and loses nothing",
			memory:   memory{Uplink: "eth1", Addresses: both},
			observed: observed{uplinkAddresses: both[1:], bridgeAddresses: both[:1]},
			want: moves{
				memory:       memory{Uplink: "eth1", Addresses: both},
				addAddresses: both[1:], clearAddresses: both[1:],
			},
		},
		{
			name:     "after a reboot with the same addresses, they move again",
			memory:   memory{Uplink: "eth1", Addresses: both},
			observed: observed{uplinkAddresses: both},
			want:     moves{memory: memory{Uplink: "eth1", Addresses: both}, addAddresses: both, clearAddresses: both},
		},
		{
			name:     "after a reboot with another address, the old one is forgotten",
			memory:   memory{Uplink: "eth1", Addresses: prefixes("192.0.2.1/24")},
			observed: observed{uplinkAddresses: prefixes("192.0.2.7/24")},
			want: moves{
				memory:       memory{Uplink: "eth1", Addresses: prefixes("192.0.2.7/24")},
				addAddresses: prefixes("192.0.2.7/24"), clearAddresses: prefixes("192.0.2.7/24"),
			},
		},
		{
			name:     "a new IPv4 address stays before IPv6: it is the tunnels' end",
			memory:   memory{Uplink: "eth1", Addresses: both},
			observed: observed{uplinkAddresses: append(prefixes("192.0.2.7/24"), both[1])},
			want: moves{
				memory:         memory{Uplink: "eth1", Addresses: append(prefixes("192.0.2.7/24"), both[1])},
				addAddresses:   append(prefixes("192.0.2.7/24"), both[1]),
				clearAddresses: append(prefixes("192.0.2.7/24"), both[1]),
			},
		},
		{
			name:     "an address added to the uplink joins the used ones",
			memory:   memory{Uplink: "eth1", Addresses: both},
			observed: observed{uplinkAddresses: prefixes("192.0.2.9/24"), bridgeAddresses: both},
			want: moves{
				memory:       memory{Uplink: "eth1", Addresses: prefixes("192.0.2.1/24", "192.0.2.9/24", "2001:db8::1/64")},
				addAddresses: prefixes("192.0.2.9/24"), clearAddresses: prefixes("192.0.2.9/24"),
			},
		},
		{
			name:     "an address that others gave the bridge stays",
			memory:   memory{Uplink: "eth1", Addresses: both},
			observed: observed{bridgeAddresses: append(slices.Clone(both), prefixes("203.0.113.1/24")...)},
			want:     moves{memory: memory{Uplink: "eth1", Addresses: both}},
		},
		{
			name:     "a bridge of another owner is adopted with its addresses",
			observed: observed{bridgeAddresses: both, bridgeRoutes: []route{via("default", "192.0.2.254")}},
			want:     moves{memory: memory{Uplink: "eth1", Addresses: both, Routes: []route{via("default", "192.0.2.254")}}},
		},
		{
			name:     "the memory of another uplink does not count",
			memory:   memory{Uplink: "eth9", Addresses: prefixes("203.0.113.1/24")},
			observed: observed{uplinkAddresses: both},
			want:     moves{memory: memory{Uplink: "eth1", Addresses: both}, addAddresses: both, clearAddresses: both},
		},
		{
			name: "an uplink without address gives an empty memory",
			want: moves{memory: memory{Uplink: "eth1"}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := planMoves("eth1", test.memory, test.observed)
			if diff := cmp.Diff(flat(test.want), flat(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestPlanMovesSurvivesInterruption interrupts a move after each step, with and without loss of the bridge's interface. The next
// plans must end with everything on the bridge.
func TestPlanMovesSurvivesInterruption(t *testing.T) {
	both := prefixes("192.0.2.1/24", "2001:db8::1/64")
	for done := range 5 {
		for _, lost := range []bool{false, true} {
			m, seen := memory{}, observed{uplinkAddresses: slices.Clone(both)}
			plan := planMoves("eth1", m, seen)
			m = plan.memory // stored in the database first
			steps := []func(){
				func() { seen.bridgeAddresses = append(seen.bridgeAddresses, plan.addAddresses[0]) },
				func() { seen.bridgeAddresses = append(seen.bridgeAddresses, plan.addAddresses[1]) },
				func() { seen.uplinkAddresses = without(seen.uplinkAddresses, plan.clearAddresses[:1]) },
				func() { seen.uplinkAddresses = nil },
			}
			for _, step := range steps[:done] {
				step()
			}
			if lost {
				seen.bridgeAddresses = nil
			}
			again := planMoves("eth1", m, seen)
			result := append(seen.bridgeAddresses, again.addAddresses...)
			slices.SortFunc(result, netip.Prefix.Compare)
			if !slices.Equal(result, both) {
				t.Errorf("interrupted after %d steps, interface lost: %t: the bridge has %v", done, lost, result)
			}
			if rest := without(seen.uplinkAddresses, again.clearAddresses); len(rest) > 0 {
				t.Errorf("interrupted after %d steps: the uplink keeps %v", done, rest)
			}
		}
	}
}

// flat returns moves in a form that is comparable and readable in a diff.
func flat(m moves) map[string][]string {
	all := map[string][]string{"uplink": {m.memory.Uplink}}
	addresses := map[string][]netip.Prefix{
		"memory": m.memory.Addresses, "add": m.addAddresses, "clear": m.clearAddresses,
	}
	for name, list := range addresses {
		for _, a := range list {
			all[name] = append(all[name], a.String())
		}
	}
	routes := map[string][]route{"memory": m.memory.Routes, "add": m.addRoutes, "clear": m.clearRoutes}
	for name, list := range routes {
		for _, r := range list {
			all[name+" routes"] = append(all[name+" routes"], r.String())
		}
	}
	return all
}
