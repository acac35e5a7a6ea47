// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/uplink"
)

// shieldTable is the nftables table of br-phy's uplink.
const shieldTable uplink.Shield = "kiln-uplink"

// tunnelBridge keeps the tunnel interface a port of br-phy, and moves its addresses to br-phy's interface.
type tunnelBridge struct {
	options  Options
	log      logr.Logger
	shielded raised
	// moved is what br-phy has taken over.
	moved memory
}

// errNoBridgeYet is returned until ovs-vswitchd has made the interface, whose link event triggers the next reconciliation.
var errNoBridgeYet = errors.New("the interface of bridge " + bridgeName + " is not there yet")

// reconcile takes the next step of the move and returns the tunnel endpoint's address. The address is known before the bridge is
// complete; then the error is errNoBridgeYet. Addresses and routes are stored in the database before they are moved.
func (u *tunnelBridge) reconcile(ctx context.Context, db *client.Client) (netip.Addr, error) {
	have, err := readBridge(ctx, db, bridgeName)
	if err != nil {
		return netip.Addr{}, err
	}
	link, err := tunnelInterface(u.options)
	if err != nil {
		return netip.Addr{}, err
	}
	bridge, err := uplink.Link(bridgeName)
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
	plan := uplink.Plan(link.Attrs().Name, have.memory.plain(), seen)
	if len(plan.Memory.Addresses) == 0 {
		return netip.Addr{}, noAddress(u.options, link)
	}
	text, err := json.Marshal(memoryOf(plan.Memory))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("encode the memory of bridge %s: %w", bridgeName, err)
	}
	spec := bridgeSpec{
		name: bridgeName, datapath: v1alpha1.DatapathUserspace, hwaddr: link.Attrs().HardwareAddr.String(), externalIDs: map[string]string{memoryKey: string(text)},
		uplink: link.Attrs().Name, former: isNoPatch,
	}
	if err := spec.ensure(ctx, db, have); err != nil {
		return netip.Addr{}, err
	}
	u.moved = memoryOf(plan.Memory)
	address := plan.Memory.Addresses[0].Prefix.Addr()
	if bridge == nil {
		return address, errNoBridgeYet
	}
	if err := uplink.Apply(plan, link, bridge, nil); err != nil {
		return address, err
	}
	return address, u.shield(ctx, link)
}

// observe reads what br-phy takes over of both interfaces: prefixes of addresses, and configured routes.
func observe(link, bridge netlink.Link) (uplink.Observed, error) {
	seen, err := uplink.Observe(link, bridge)
	seen.UplinkAddresses = uplink.Plain(uplink.Prefixes(seen.UplinkAddresses))
	seen.BridgeAddresses = uplink.Plain(uplink.Prefixes(seen.BridgeAddresses))
	return seen, err
}

// raised is a shield, and when it was raised.
type raised struct {
	of uplink.Shielded
	at time.Time
}

// covers reports whether the shield need not be raised again: like the guard's table, it can be flushed by another program without a notification.
func (r raised) covers(of uplink.Shielded) bool { return r.of == of && time.Since(r.at) < guardRefresh }

func (u *tunnelBridge) shield(ctx context.Context, link netlink.Link) error {
	of, err := uplink.ShieldedFor(link)
	if err != nil || u.shielded.covers(of) {
		return err
	}
	if err := shieldTable.Raise(ctx, link.Attrs().Name, of); err != nil {
		return err
	}
	u.shielded = raised{of, time.Now()}
	return nil
}

// giveBack moves addresses and routes from the bridge back to a former uplink.
func (u *tunnelBridge) giveBack(ctx context.Context, m memory, bridge netlink.Link) error {
	former, err := uplink.Link(m.Uplink)
	if err != nil {
		return err
	}
	if former == nil {
		return nil // the interface was deleted: nothing to give the addresses back to
	}
	u.log.Info("giving addresses back to the former tunnel interface", "interface", m.Uplink, "addresses", m.Addresses)
	if err := shieldTable.Drop(ctx); err != nil {
		return err
	}
	u.shielded = raised{}
	addresses, from := uplink.Plain(m.Addresses), former
	if bridge != nil {
		if err := uplink.RemoveAddresses(bridge, addresses, nil); err != nil {
			return err
		}
		from = bridge
	}
	return uplink.Apply(uplink.Moves{AddAddresses: addresses, AddRoutes: m.Routes}, from, former, nil)
}

// leave gives addresses and routes back after ovs-vswitchd has ended, which leaves br-phy's interface without carrier, if the node's address is one of them.
// The node would otherwise have no network by which the kubelet gets the next pod. The next ovs-vswitchd makes the interface again.
func (u *tunnelBridge) leave(ctx context.Context) error {
	if !slices.ContainsFunc(u.moved.Addresses, func(a netip.Prefix) bool { return a.Addr().String() == u.options.NodeAddress }) {
		return nil
	}
	added := u.giveBack(ctx, memory{Uplink: u.moved.Uplink, Addresses: u.moved.Addresses}, nil)
	bridge, err := uplink.Link(bridgeName)
	if err == nil && bridge != nil { // also if an address was refused: the others are not used while it is there
		err = netlink.LinkDel(bridge)
	}
	if err != nil {
		return errors.Join(added, fmt.Errorf("remove the interface of %s: %w", bridgeName, err))
	}
	return u.giveBack(ctx, u.moved, nil)
}

// rename makes the memory that of the uplink if the uplink is the former one under another name. All addresses of the uplink are
// then in the memory: the kernel may have configured some again, from router advertisements. The bridge has the hardware address of
// the former uplink.
func (b *bridge) rename(link netlink.Link, seen uplink.Observed) error {
	known := func(a uplink.Address) bool { return slices.Contains(b.memory.Addresses, a.Prefix) }
	if b.memory.Uplink == "" || !all(seen.UplinkAddresses, known) {
		return nil
	}
	former, err := uplink.Link(b.memory.Uplink)
	if err == nil && former == nil && b.row.OtherConfig["hwaddr"] == link.Attrs().HardwareAddr.String() {
		b.memory.Uplink = link.Attrs().Name
	}
	return err
}

func all[T any](list []T, is func(T) bool) bool {
	return !slices.ContainsFunc(list, func(e T) bool { return !is(e) })
}
