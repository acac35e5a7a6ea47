// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func addressList(list ...string) []Address {
	var parsed []netip.Prefix
	for _, s := range list {
		parsed = append(parsed, netip.MustParsePrefix(s))
	}
	return Plain(parsed)
}

func via(destination, gateway string) Route {
	r := Route{Family: 4}
	if destination != "default" {
		r.Destination = netip.MustParsePrefix(destination)
	}
	if gateway != "" {
		r.Gateway = netip.MustParseAddr(gateway)
	}
	return r
}

func TestPlanMoves(t *testing.T) {
	both := addressList("192.0.2.1/24", "2001:db8::1/64")
	tests := []struct {
		name string
		Memory
		Observed
		want Moves
	}{
		{
			name:     "the first time, everything moves",
			Observed: Observed{UplinkAddresses: both, UplinkRoutes: []Route{via("default", "192.0.2.254"), via("198.51.100.0/24", "")}},
			want: Moves{
				Memory: Memory{
					Uplink: "eth1", Addresses: both,
					Routes: []Route{via("198.51.100.0/24", ""), via("default", "192.0.2.254")},
				},
				AddAddresses: both, AddRoutes: []Route{via("198.51.100.0/24", ""), via("default", "192.0.2.254")},
				ClearAddresses: both, ClearRoutes: []Route{via("default", "192.0.2.254"), via("198.51.100.0/24", "")},
			},
		},
		{
			name:     "when all is done, there is nothing to do",
			Memory:   Memory{Uplink: "eth1", Addresses: both, Routes: []Route{via("default", "192.0.2.254")}},
			Observed: Observed{BridgeAddresses: both, BridgeRoutes: []Route{via("default", "192.0.2.254")}},
			want:     Moves{Memory: Memory{Uplink: "eth1", Addresses: both, Routes: []Route{via("default", "192.0.2.254")}}},
		},
		{
			name:   "a new tap gets everything back",
			Memory: Memory{Uplink: "eth1", Addresses: both, Routes: []Route{via("default", "192.0.2.254")}},
			want: Moves{
				Memory:       Memory{Uplink: "eth1", Addresses: both, Routes: []Route{via("default", "192.0.2.254")}},
				AddAddresses: both, AddRoutes: []Route{via("default", "192.0.2.254")},
			},
		},
		{
			name:     "after an interruption it continues and loses nothing",
			Memory:   Memory{Uplink: "eth1", Addresses: both},
			Observed: Observed{UplinkAddresses: both[1:], BridgeAddresses: both[:1]},
			want: Moves{
				Memory:       Memory{Uplink: "eth1", Addresses: both},
				AddAddresses: both[1:], ClearAddresses: both[1:],
			},
		},
		{
			name:     "after a reboot with the same addresses, they move again",
			Memory:   Memory{Uplink: "eth1", Addresses: both},
			Observed: Observed{UplinkAddresses: both},
			want:     Moves{Memory: Memory{Uplink: "eth1", Addresses: both}, AddAddresses: both, ClearAddresses: both},
		},
		{
			name:     "after a reboot with another address, the old one is forgotten",
			Memory:   Memory{Uplink: "eth1", Addresses: addressList("192.0.2.1/24")},
			Observed: Observed{UplinkAddresses: addressList("192.0.2.7/24")},
			want: Moves{
				Memory:       Memory{Uplink: "eth1", Addresses: addressList("192.0.2.7/24")},
				AddAddresses: addressList("192.0.2.7/24"), ClearAddresses: addressList("192.0.2.7/24"),
			},
		},
		{
			name:     "a new IPv4 address stays before IPv6: it is the tunnels' end",
			Memory:   Memory{Uplink: "eth1", Addresses: both},
			Observed: Observed{UplinkAddresses: append(addressList("192.0.2.7/24"), both[1])},
			want: Moves{
				Memory:         Memory{Uplink: "eth1", Addresses: append(addressList("192.0.2.7/24"), both[1])},
				AddAddresses:   append(addressList("192.0.2.7/24"), both[1]),
				ClearAddresses: append(addressList("192.0.2.7/24"), both[1]),
			},
		},
		{
			name:     "an address added to the uplink joins the used ones",
			Memory:   Memory{Uplink: "eth1", Addresses: both},
			Observed: Observed{UplinkAddresses: addressList("192.0.2.9/24"), BridgeAddresses: both},
			want: Moves{
				Memory:       Memory{Uplink: "eth1", Addresses: addressList("192.0.2.1/24", "192.0.2.9/24", "2001:db8::1/64")},
				AddAddresses: addressList("192.0.2.9/24"), ClearAddresses: addressList("192.0.2.9/24"),
			},
		},
		{
			name:     "an address that others gave the bridge stays",
			Memory:   Memory{Uplink: "eth1", Addresses: both},
			Observed: Observed{BridgeAddresses: append(slices.Clone(both), addressList("203.0.113.1/24")...)},
			want:     Moves{Memory: Memory{Uplink: "eth1", Addresses: both}},
		},
		{
			name:     "a bridge of another owner is adopted with its addresses",
			Observed: Observed{BridgeAddresses: both, BridgeRoutes: []Route{via("default", "192.0.2.254")}},
			want:     Moves{Memory: Memory{Uplink: "eth1", Addresses: both, Routes: []Route{via("default", "192.0.2.254")}}},
		},
		{
			name:     "the memory of another uplink does not count",
			Memory:   Memory{Uplink: "eth9", Addresses: addressList("203.0.113.1/24")},
			Observed: Observed{UplinkAddresses: both},
			want:     Moves{Memory: Memory{Uplink: "eth1", Addresses: both}, AddAddresses: both, ClearAddresses: both},
		},
		{
			name: "an uplink without address gives an empty memory",
			want: Moves{Memory: Memory{Uplink: "eth1"}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := Plan("eth1", test.Memory, test.Observed)
			if diff := cmp.Diff(flat(test.want), flat(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestPlanMovesSurvivesInterruption interrupts a move after each step, with and without loss of the bridge's interface. The next
// plans must end with everything on the bridge.
func TestPlanMovesSurvivesInterruption(t *testing.T) {
	both := addressList("192.0.2.1/24", "2001:db8::1/64")
	for done := range 5 {
		for _, lost := range []bool{false, true} {
			m, seen := Memory{}, Observed{UplinkAddresses: slices.Clone(both)}
			plan := Plan("eth1", m, seen)
			m = plan.Memory // stored in the database first
			steps := []func(){
				func() { seen.BridgeAddresses = append(seen.BridgeAddresses, plan.AddAddresses[0]) },
				func() { seen.BridgeAddresses = append(seen.BridgeAddresses, plan.AddAddresses[1]) },
				func() { seen.UplinkAddresses = without(seen.UplinkAddresses, plan.ClearAddresses[:1]) },
				func() { seen.UplinkAddresses = nil },
			}
			for _, step := range steps[:done] {
				step()
			}
			if lost {
				seen.BridgeAddresses = nil
			}
			again := Plan("eth1", m, seen)
			result := append(seen.BridgeAddresses, again.AddAddresses...)
			slices.SortFunc(result, func(a, b Address) int { return a.Prefix.Compare(b.Prefix) })
			if !slices.Equal(result, both) {
				t.Errorf("interrupted after %d steps, interface lost: %t: the bridge has %v", done, lost, result)
			}
			if rest := without(seen.UplinkAddresses, again.ClearAddresses); len(rest) > 0 {
				t.Errorf("interrupted after %d steps: the uplink keeps %v", done, rest)
			}
		}
	}
}

// TestALeaseThatIsRenewedOnTheUplinkIsLongerOnTheBridge has an address that a DHCP client has renewed on the interface after the move.
func TestALeaseThatIsRenewedOnTheUplinkIsLongerOnTheBridge(t *testing.T) {
	lease := func(valid time.Duration) []Address {
		return []Address{{Prefix: netip.MustParsePrefix("192.0.2.50/24"), Valid: valid, Preferred: valid / 2}}
	}
	m := Memory{Uplink: "eth1", Addresses: lease(time.Hour)}
	for uplink, want := range map[time.Duration]time.Duration{2 * time.Hour: 2 * time.Hour, 0: 0, time.Hour + time.Second: -1, time.Minute: -1} {
		got := Plan("eth1", m, Observed{UplinkAddresses: lease(uplink), BridgeAddresses: lease(time.Hour)})
		switch {
		case want == -1:
			if len(got.AddAddresses) > 0 || got.Memory.Addresses[0].Valid != time.Hour {
				t.Errorf("with %s on the interface, plan: %+v", uplink, got)
			}
		case !slices.Equal(got.AddAddresses, lease(want)) || !slices.Equal(got.Memory.Addresses, lease(want)):
			t.Errorf("with %s on the interface, plan: %+v", uplink, got)
		}
		if len(got.ClearAddresses) != 1 {
			t.Errorf("with %s on the interface, it keeps the address", uplink)
		}
	}
}

// flat returns moves in a form that is comparable and readable in a diff.
func flat(m Moves) map[string][]string {
	all := map[string][]string{"uplink": {m.Memory.Uplink}}
	addresses := map[string][]Address{
		"memory": m.Memory.Addresses, "add": m.AddAddresses, "clear": m.ClearAddresses,
	}
	for name, list := range addresses {
		for _, a := range list {
			all[name] = append(all[name], a.Prefix.String())
		}
	}
	routes := map[string][]Route{"memory": m.Memory.Routes, "add": m.AddRoutes, "clear": m.ClearRoutes}
	for name, list := range routes {
		for _, r := range list {
			all[name+" routes"] = append(all[name+" routes"], r.String())
		}
	}
	return all
}
