// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"context"
	"fmt"

	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/node/bridges/journal"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
)

// state is where the interface of a provider network is, according to the journal of its bridge and to the last attempt.
type state string

const (
	none      state = "none"      // the node has the interface, and no attempt was refused
	refused   state = "refused"   // the node has the interface: the last attempt moved nothing, and its result counts for a time
	trial     state = "trial"     // a process has begun a move, and ended or was stopped before it was completed
	moved     state = "moved"     // the interface is a port of the bridge
	returning state = "returning" // the interface gets everything back, and does not have all of it yet
	returned  state = "returned"  // the interface has everything back, after a move that failed
)

// stateOf returns the state of an interface with a journal, which can be nil.
func (m *Mover) stateOf(provider string, j *journal.Journal) state {
	_, wasRefused := m.refused[provider]
	switch {
	case j != nil && j.Phase == journal.PhaseMoved:
		return moved
	case j != nil && !j.Done && j.Phase == journal.PhaseReturned:
		return returning
	case j != nil && !j.Done:
		return trial
	case wasRefused:
		return refused
	case j != nil:
		return returned
	}
	return none
}

// event is what a pass finds about a provider network. If there are several, the first one counts.
type event string

const (
	removed   event = "removed"   // the agent no longer requests the bridge
	conflict  event = "conflict"  // something else has the interface or the name of the bridge
	unwanted  event = "unwanted"  // the request names another interface than the journal, or no longer permits the move
	shared    event = "shared"    // the request names the tunnel interface, which br-phy has in the userspace datapath
	requested event = "requested" // the request names an interface that may move
)

// action is the transition that a pass makes.
type action string

const (
	refuse  action = "refuse"  // report the conflict, and change nothing
	release action = "release" // give everything back, and delete the bridge: then the state is none
	share   action = "share"   // connect the bridge with br-phy
	keep    action = "keep"    // complete the bridge and renew its addresses and routes: the state is moved, or returned if something was not renewed
	putBack action = "putBack" // end a move or a restoration that was interrupted: then the state is returned
	attempt action = "attempt" // check the interface and begin a move: then the state is refused, trial and moved, or returned
)

// next returns the transition from a state because of an event.
func next(s state, e event) action {
	switch e {
	case removed, unwanted:
		return release
	case conflict:
		return refuse
	case shared:
		return share
	case requested:
	}
	switch s {
	case moved:
		return keep
	case trial, returning:
		return putBack
	case none, refused, returned:
	}
	return attempt
}

// situation is what a pass finds about a network.
type situation struct {
	state state
	event event
	// cause of the events conflict, unwanted and removed, for users.
	cause   string
	journal *journal.Journal
}

// observe returns the situation of a network.
func (m *Mover) observe(ctx context.Context, n network) (s situation, err error) {
	if n.request == nil {
		return situation{event: removed, cause: "the provider network was removed from the node"}, nil
	}
	if s.cause, err = m.conflictOf(ctx, n); err != nil || s.cause != "" {
		s.event = conflict
		return s, err
	}
	if s.journal, err = m.directory.Read(n.bridge); err != nil {
		return s, err
	}
	s.state, s.cause = m.stateOf(n.provider, s.journal), outdated(s.journal, *n.request)
	switch {
	case s.cause != "":
		s.event = unwanted
	case m.sharesTunnels(*n.request):
		s.event = shared
	default:
		s.event = requested
	}
	return s, nil
}

// advance makes transitions until one has a result, which is empty for a network that was removed.
func (m *Mover) advance(ctx context.Context, n network) providerbridge.Result {
	for {
		s, err := m.observe(ctx, n)
		if err == nil {
			err = arrange(ctx, n, s.event)
		}
		if err != nil {
			return failure(err)
		}
		switch next(s.state, s.event) {
		case refuse:
			return failed(providerbridge.ReasonConflict, "%s", s.cause)
		case release:
			if err = m.release(ctx, n, s.cause); err == nil && s.event == removed {
				return providerbridge.Result{}
			}
		case share:
			return m.share(ctx, n)
		case keep:
			return m.keep(ctx, n)
		case putBack:
			err = m.putBack(ctx, n)
		case attempt:
			return m.attempt(ctx, n, s.journal)
		}
		if err != nil {
			return failure(err)
		}
	}
}

// arrange makes what a request needs in each state: its VLAN interface, and no connection with br-phy unless the interface is shared.
func arrange(ctx context.Context, n network, e event) error {
	if e != shared && e != requested {
		return nil
	}
	if err := createVLAN(n.bridge, *n.request); err != nil || e == shared {
		return err
	}
	return stopSharing(ctx, n.db, n.provider)
}

// conflictOf returns what else has the bridge's name or the interface; empty if nothing has.
func (m *Mover) conflictOf(ctx context.Context, n network) (cause string, err error) {
	have, err := database.Read(ctx, n.db, n.bridge)
	switch {
	case err != nil:
		return "", err
	case n.provider == providerbridge.Tunnels: // the two ends of its connection with that bridge would have one name
		return n.provider + " is the name of a bridge: choose another name for the provider network", nil
	case n.bridge == providerbridge.Tunnels || n.bridge == database.Integration || have.Row != nil && have.Row.ExternalIDs[providerbridge.PortKey] != n.provider:
		return fmt.Sprintf("another program uses the bridge %s: choose another name for the provider network", n.bridge), nil
	case n.user != "":
		return fmt.Sprintf("the provider network %s uses interface %s: choose another interface", n.user, n.request.Interface), nil
	}
	other, err := database.MappedElsewhere(ctx, n.db, n.provider)
	if err != nil || other == "" {
		return "", err
	}
	return fmt.Sprintf("ovn-bridge-mappings of the node's Open vSwitch has the bridge %s for %s: remove this entry, or choose another name for the provider network", other, n.provider), nil
}

// outdated returns why an interface that has moved has to return; empty if it has not.
func outdated(j *journal.Journal, q providerbridge.Request) string {
	switch {
	case j == nil:
		return ""
	case j.Uplink == q.Interface && !q.NodeInterface.Known(): // of another version: the interface stays
		return ""
	case j.Phase == journal.PhaseMoved && len(j.Renewals) > 0 && q.NodeInterface != providerbridge.NodeInterfaceAll:
		return "nodeInterface of the provider network is not " + string(providerbridge.NodeInterfaceAll)
	case j.Uplink != q.Interface:
		return "the provider network has another interface"
	case j.Phase == journal.PhaseMoved && j.Before.Needed() != "" && !q.NodeInterface.MovesAddresses():
		return "nodeInterface of the provider network is " + string(providerbridge.NodeInterfaceRefuse)
	}
	return ""
}
