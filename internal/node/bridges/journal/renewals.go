// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/bridges/renewal"
)

// renewals returns the renewals of entries that still end, with the rest of each.
func (j *Journal) renewals() (list []renewal.Renewal) {
	for _, r := range j.Renewals {
		if rest, limited := r.Of(j.Before); limited {
			list = append(list, rest)
		}
	}
	return list
}

// Renewals returns the renewals of a bridge that has taken over entries that end.
func (d Directory) Renewals(bridge string) ([]renewal.Renewal, error) {
	j, err := d.Read(bridge)
	if err != nil || j == nil {
		return nil, err
	}
	return j.renewals(), nil
}

// Extend gives the renewed entries their new ends, on the bridge and in the journal.
func (d Directory) Extend(ctx context.Context, bridge string, renewed renewal.Renewal) error {
	return d.update(ctx, bridge, func(j *Journal, step kernel.Step) error {
		link, err := netlink.LinkByName(bridge)
		if err != nil {
			return fmt.Errorf("look for interface %s: %w", bridge, err)
		}
		before := j.Before
		j.Before = renewed.Extend(before)
		if err := kernel.Extend(link, before, j.Before, step); err != nil {
			return err
		}
		for i, r := range j.Renewals {
			if r.Address == renewed.Address {
				j.Renewals[i] = renewed
			}
		}
		return d.write(j)
	})
}

// ends returns the time until a guard restores the interface because nothing renews an entry, and what ends; false if nothing does.
func (j *Journal) ends() (left time.Duration, name string, limited bool) {
	for _, r := range j.renewals() {
		if until := r.GuardAfter(); !limited || until < left {
			left, name, limited = until, r.String(), true
		}
	}
	return left, name, limited
}

// bridgeSettings returns the settings of the bridge.
func (j *Journal) bridgeSettings() map[string]string {
	return j.Before.BridgeSettings(slices.ContainsFunc(j.Renewals, func(r renewal.Renewal) bool { return !r.Address.IsValid() }))
}
