// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/providerbridge"
	"github.com/kiln-net/kiln/internal/uplink"
)

// proof is that DHCP servers renew the leases of an interface.
type proof struct {
	of     string
	leases []uplink.Lease
	until  time.Time
}

// prove returns the leases of the addresses that are to move. A proof counts for a quarter of the shortest lease, so that a node that waits for its turn
// does not ask again at each event.
func (p *providers) prove(ctx context.Context, link netlink.Link, j uplink.Journal) ([]uplink.Lease, error) {
	of := strings.Join(append(j.Before.Limited(), j.Attempt), ", ")
	if old, found := p.proven[j.Bridge]; found && old.of == of && time.Now().Before(old.until) {
		return old.leases, nil
	}
	delete(p.proven, j.Bridge)
	ids, err := p.managers.ClientIDs(link)
	if err != nil {
		return nil, err
	}
	leases, err := uplink.Prove(ctx, link, j.Before, ids)
	if err != nil || len(leases) == 0 {
		return nil, err
	}
	shortest := leases[0].Duration
	for _, l := range leases {
		shortest = min(shortest, l.Duration)
	}
	p.proven[j.Bridge] = proof{of: of, leases: leases, until: time.Now().Add(shortest / 4)}
	return leases, nil
}

// renew renews the leases of a bridge whose half has passed. It returns why the interface has to get its addresses back, if a lease ends soon.
func (p *providers) renew(ctx context.Context, bridge string) (lost, err error) {
	leases, err := p.directory.Leases(bridge)
	if err != nil || len(leases) == 0 {
		return nil, err
	}
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		return nil, fmt.Errorf("look for interface %s: %w", bridge, err)
	}
	for _, l := range leases {
		if l.LostAfter() <= 0 {
			return fmt.Errorf("no DHCP server or router has renewed %s, with %s left", l, l.Left.Round(time.Second)), nil
		}
		if due := l.RenewAfter(); due > 0 {
			p.wake(due)
			continue
		}
		pause := min(time.Minute, l.Duration/16)
		if left := pause - time.Since(p.asked[bridge+l.String()]); left > 0 {
			p.wake(left)
			continue
		}
		p.asked[bridge+l.String()] = time.Now()
		limited, cancel := context.WithTimeout(ctx, l.LostAfter())
		renewed, err := l.Ask(limited, link)
		cancel()
		if err == nil {
			if err := p.directory.Extend(ctx, bridge, renewed); err != nil {
				return nil, err
			}
			p.moves.renewed.Add(1)
			if len(renewed.Silent) > 0 {
				p.options.Log.Info("no router renews some addresses or routes of a bridge", "bridge", bridge, "missing", renewed.Silent)
			}
			p.wake(renewed.Duration / 2)
			continue
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		p.moves.notRenewed.Add(1)
		p.options.Log.Error(err, "a lease was not renewed", "bridge", bridge, "left", l.Left.String())
		p.wake(pause)
	}
	return nil, nil
}

// notRenewed returns the addresses to the interface, where the node's own DHCP client can renew them or get others.
func (p *providers) notRenewed(ctx context.Context, db *client.Client, bridge string, lost, err error) providerbridge.Result {
	if lost == nil {
		return p.interrupted(bridge, err)
	}
	j, err := p.directory.Read(bridge)
	if err != nil || j == nil {
		return failure(errors.Join(lost, err))
	}
	return p.undo(ctx, db, *j, lost)
}
