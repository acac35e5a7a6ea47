// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/ovsdb/client"
)

// uplink keeps the tunnel interface a port of br-phy, and moves its addresses to br-phy's interface.
type uplink struct {
	options Options
	log     logr.Logger
	// shielded is the index of the interface that has the shield.
	shielded int
}

// errNoBridgeYet is returned until ovs-vswitchd has made the interface, whose link event triggers the next reconciliation.
var errNoBridgeYet = errors.New("the interface of bridge " + bridgeName + " is not there yet")

// reconcile takes the next step of the move and returns the tunnel endpoint's address. The address is known before the bridge is
// complete; then the error is errNoBridgeYet. Addresses and routes are stored in the database before they are moved.
func (u *uplink) reconcile(ctx context.Context, db *client.Client) (netip.Addr, error) {
	have, err := readBridge(ctx, db)
	if err != nil {
		return netip.Addr{}, err
	}
	link, err := tunnelInterface(u.options)
	if err != nil {
		return netip.Addr{}, err
	}
	bridge, err := linkIfThere(bridgeName)
	if err != nil {
		return netip.Addr{}, err
	}
	if old := have.memory.Uplink; old != "" && old != link.Attrs().Name {
		if err := u.giveBack(ctx, have.memory, bridge); err != nil {
			return netip.Addr{}, err
		}
	}
	seen, err := observe(link, bridge)
	if err != nil {
		return netip.Addr{}, err
	}
	if err := have.rename(link, seen); err != nil {
		return netip.Addr{}, err
	}
	plan := planMoves(link.Attrs().Name, have.memory, seen)
	if len(plan.memory.Addresses) == 0 {
		return netip.Addr{}, noAddress(u.options, link)
	}
	if err := ensureBridge(ctx, db, have, link, plan.memory); err != nil {
		return netip.Addr{}, err
	}
	address := plan.memory.Addresses[0].Addr()
	if bridge == nil {
		return address, errNoBridgeYet
	}
	if err := apply(plan, link, bridge); err != nil {
		return address, err
	}
	return address, u.shield(ctx, link)
}

func (u *uplink) shield(ctx context.Context, link netlink.Link) error {
	if u.shielded == link.Attrs().Index {
		return nil
	}
	if err := shield(ctx, link.Attrs().Name); err != nil {
		return err
	}
	u.shielded = link.Attrs().Index
	return nil
}

// giveBack moves addresses and routes from the bridge back to a former uplink.
func (u *uplink) giveBack(ctx context.Context, m memory, bridge netlink.Link) error {
	former, err := linkIfThere(m.Uplink)
	if err != nil {
		return err
	}
	if former == nil {
		return nil // the interface was deleted: nothing to give the addresses back to
	}
	u.log.Info("giving addresses back to the former tunnel interface", "interface", m.Uplink, "addresses", m.Addresses)
	if err := unshield(ctx); err != nil {
		return err
	}
	u.shielded = 0
	if bridge != nil {
		if err := removeAddresses(bridge, m.Addresses); err != nil {
			return err
		}
	}
	return apply(moves{addAddresses: m.Addresses, addRoutes: m.Routes}, former, former)
}

// rename makes the memory that of the uplink if the uplink is the former one under another name. All addresses of the uplink are
// then in the memory: the kernel may have configured some again, from router advertisements. The bridge has the hardware address of
// the former uplink.
func (b *bridge) rename(uplink netlink.Link, seen observed) error {
	if b.memory.Uplink == "" || len(without(seen.uplinkAddresses, b.memory.Addresses)) > 0 {
		return nil
	}
	former, err := linkIfThere(b.memory.Uplink)
	if err == nil && former == nil && b.row.OtherConfig["hwaddr"] == uplink.Attrs().HardwareAddr.String() {
		b.memory.Uplink = uplink.Attrs().Name
	}
	return err
}

// linkIfThere returns the interface, or nil if it does not exist.
func linkIfThere(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil //nolint:nilnil // no interface is a state, not a failure
	}
	if err != nil {
		return nil, fmt.Errorf("look for interface %s: %w", name, err)
	}
	return link, nil
}
