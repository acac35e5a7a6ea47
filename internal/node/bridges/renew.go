// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/bridges/renewal"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
)

// proof is that DHCP servers and routers renew what an interface has for a limited time.
type proof struct {
	of       string
	renewals []renewal.Renewal
	until    time.Time
}

// prove returns the renewals of addresses and routes that are to move. A proof counts for a quarter of the shortest duration, so that a node that waits for its turn
// does not ask again at each event.
func (m *Mover) prove(ctx context.Context, c *candidate) ([]renewal.Renewal, error) {
	of := strings.Join(append(c.journal.Before.Limited(), c.journal.Attempt), ", ")
	if old, found := m.proven[c.bridge]; found && old.of == of && time.Now().Before(old.until) {
		return old.renewals, nil
	}
	delete(m.proven, c.bridge)
	ids, err := m.managers.ClientIDs(c.link)
	if err != nil {
		return nil, err
	}
	renewals, err := renewal.Prove(ctx, c.link, c.journal.Before, ids)
	if err != nil || len(renewals) == 0 {
		return nil, err
	}
	shortest := renewals[0].Duration
	for _, r := range renewals {
		shortest = min(shortest, r.Duration)
	}
	m.proven[c.bridge] = proof{of: of, renewals: renewals, until: time.Now().Add(shortest / 4)}
	return renewals, nil
}

// renew renews what a bridge has for a limited time, once half of it has passed. It returns why the interface has to get its addresses back, if something ends soon.
func (m *Mover) renew(ctx context.Context, bridge string) (lost, err error) {
	renewals, err := m.directory.Renewals(bridge)
	if err != nil || len(renewals) == 0 {
		return nil, err
	}
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		return nil, fmt.Errorf("look for interface %s: %w", bridge, err)
	}
	for _, r := range renewals {
		if r.LostAfter() <= 0 {
			return fmt.Errorf("no DHCP server or router has renewed %s, with %s left", r, r.Left.Round(time.Second)), nil
		}
		if due := r.RenewAfter(); due > 0 {
			m.wake(due)
			continue
		}
		if err := m.ask(ctx, bridge, link, r); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// ask asks for one renewal, unless it was asked for a short time ago.
func (m *Mover) ask(ctx context.Context, bridge string, link netlink.Link, r renewal.Renewal) error {
	pause := min(time.Minute, r.Duration/16)
	if left := pause - time.Since(m.asked[bridge+r.String()]); left > 0 {
		m.wake(left)
		return nil
	}
	m.asked[bridge+r.String()] = time.Now()
	limited, cancel := context.WithTimeout(ctx, r.LostAfter())
	renewed, err := r.Ask(limited, link)
	cancel()
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return ctx.Err()
	default:
		m.moves.notRenewed.Add(1)
		m.options.Log.Error(err, "an address or route was not renewed", "bridge", bridge, "left", r.Left.String())
		m.wake(pause)
		return nil
	}
	if err := m.directory.Extend(ctx, bridge, renewed); err != nil {
		return err
	}
	m.moves.renewed.Add(1)
	if len(renewed.Silent) > 0 {
		m.options.Log.Info("no router renews some addresses or routes of a bridge", "bridge", bridge, "missing", renewed.Silent)
	}
	m.wake(renewed.Duration / 2)
	return nil
}

// notRenewed returns the addresses to the interface, where the node's own DHCP client can renew them or get others.
func (m *Mover) notRenewed(ctx context.Context, n network, lost, err error) providerbridge.Result {
	if lost == nil {
		return m.interrupted(n.bridge, err)
	}
	j, err := m.directory.Read(n.bridge)
	if err != nil || j == nil {
		return failure(errors.Join(lost, err))
	}
	return m.undo(ctx, n, *j, lost)
}
