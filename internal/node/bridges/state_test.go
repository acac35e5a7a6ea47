// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"net/netip"
	"testing"

	"github.com/kiln-net/kiln/internal/node/bridges/journal"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/bridges/renewal"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
)

// TestNext has the transition of each state because of each event.
func TestNext(t *testing.T) {
	events := []event{removed, conflict, unwanted, shared, requested}
	for s, want := range map[state][]action{
		none:      {release, refuse, release, share, attempt},
		refused:   {release, refuse, release, share, attempt},
		trial:     {release, refuse, release, share, putBack},
		moved:     {release, refuse, release, share, keep},
		returning: {release, refuse, release, share, putBack},
		returned:  {release, refuse, release, share, attempt},
	} {
		for i, e := range events {
			if got := next(s, e); got != want[i] {
				t.Errorf("%s and %s: %s, want %s", s, e, got, want[i])
			}
		}
	}
}

func TestStateOfAJournal(t *testing.T) {
	at := func(phase journal.Phase, done bool) *journal.Journal {
		return &journal.Journal{Phase: phase, Done: done}
	}
	for name, c := range map[string]struct {
		journal *journal.Journal
		refused bool
		want    state
	}{
		"no journal":                           {nil, false, none},
		"no journal, after a refusal":          {nil, true, refused},
		"a trial":                              {at(journal.PhaseTrial, false), false, trial},
		"a complete move":                      {at(journal.PhaseMoved, false), false, moved},
		"a complete move, after a refusal":     {at(journal.PhaseMoved, false), true, moved},
		"a restoration that is not complete":   {at(journal.PhaseReturned, false), true, returning},
		"a complete restoration":               {at(journal.PhaseReturned, true), false, returned},
		"a complete restoration and a refusal": {at(journal.PhaseReturned, true), true, refused},
	} {
		m := &Mover{refused: map[string]refusal{}}
		if c.refused {
			m.refused["net1"] = refusal{}
		}
		if got := m.stateOf("net1", c.journal); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestOutdated compares a journal with the request of the agent.
func TestOutdated(t *testing.T) {
	addresses := kernel.State{Addresses: kernel.Plain([]netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")})}
	renewed := []renewal.Renewal{{}}
	for name, c := range map[string]struct {
		journal *journal.Journal
		request providerbridge.NodeInterface
		want    string
	}{
		"nothing has moved":                      {nil, providerbridge.NodeInterfaceRefuse, ""},
		"an interface without addresses":         {&journal.Journal{Phase: journal.PhaseMoved, Uplink: "eth1"}, providerbridge.NodeInterfaceRefuse, ""},
		"another interface":                      {&journal.Journal{Phase: journal.PhaseMoved, Uplink: "eth2"}, providerbridge.NodeInterfaceAll, "the provider network has another interface"},
		"another interface, after its return":    {&journal.Journal{Phase: journal.PhaseReturned, Done: true, Uplink: "eth2"}, providerbridge.NodeInterfaceAll, "the provider network has another interface"},
		"static addresses with Static":           {&journal.Journal{Phase: journal.PhaseMoved, Uplink: "eth1", Before: addresses}, providerbridge.NodeInterfaceStatic, ""},
		"static addresses with All":              {&journal.Journal{Phase: journal.PhaseMoved, Uplink: "eth1", Before: addresses}, providerbridge.NodeInterfaceAll, ""},
		"static addresses with Refuse":           {&journal.Journal{Phase: journal.PhaseMoved, Uplink: "eth1", Before: addresses}, providerbridge.NodeInterfaceRefuse, "nodeInterface of the provider network is Refuse"},
		"static addresses without a value":       {&journal.Journal{Phase: journal.PhaseMoved, Uplink: "eth1", Before: addresses}, "", "nodeInterface of the provider network is Refuse"},
		"a value of another version":             {&journal.Journal{Phase: journal.PhaseMoved, Uplink: "eth1", Before: addresses, Renewals: renewed}, "Move", ""},
		"static addresses that have returned":    {&journal.Journal{Phase: journal.PhaseReturned, Uplink: "eth1", Before: addresses}, "", ""},
		"addresses of a DHCP server with All":    {&journal.Journal{Phase: journal.PhaseMoved, Uplink: "eth1", Before: addresses, Renewals: renewed}, providerbridge.NodeInterfaceAll, ""},
		"addresses of a DHCP server with Static": {&journal.Journal{Phase: journal.PhaseMoved, Uplink: "eth1", Before: addresses, Renewals: renewed}, providerbridge.NodeInterfaceStatic, "nodeInterface of the provider network is not All"},
	} {
		if got := outdated(c.journal, providerbridge.Request{Interface: "eth1", NodeInterface: c.request}); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
