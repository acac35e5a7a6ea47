// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/node/bridges/journal"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
)

// memoryKey is the key in br-phy's external_ids that stores its memory.
const memoryKey = "kiln-uplink"

// memory is kernel.Memory as the database has it.
type memory struct {
	Uplink    string         `json:"uplink"`
	Addresses []netip.Prefix `json:"addresses"`
	Routes    []kernel.Route `json:"routes,omitempty"`
}

func memoryOf(m kernel.Memory) memory {
	return memory{Uplink: m.Uplink, Addresses: kernel.Prefixes(m.Addresses), Routes: m.Routes}
}

func (m memory) plain() kernel.Memory {
	return kernel.Memory{Uplink: m.Uplink, Addresses: kernel.Plain(m.Addresses), Routes: m.Routes}
}

// memoryIn returns the memory in a row of br-phy.
func memoryIn(have database.Bridge) (m memory, err error) {
	if have.Row == nil || have.Row.ExternalIDs[memoryKey] == "" {
		return m, nil
	}
	if err := json.Unmarshal([]byte(have.Row.ExternalIDs[memoryKey]), &m); err != nil {
		return m, fmt.Errorf("decode external_ids:%s of bridge %s: %w", memoryKey, have.Row.Name, err)
	}
	return m, nil
}

// Tunnels knows the address of the tunnels. In the userspace datapath it keeps the tunnel interface a port of br-phy, and moves its addresses to br-phy's interface.
type Tunnels struct {
	options   Options
	directory journal.Directory
	// last is the name of the last interface that had the node's address.
	last     string
	shielded raised
	// moved is what br-phy has taken over.
	moved memory
}

// NewTunnels returns an error if the node does not have the tunnel interface.
func NewTunnels(o Options) (*Tunnels, error) {
	link, err := tunnelInterface(o)
	if err != nil {
		return nil, err
	}
	return &Tunnels{options: o, directory: journal.DirectoryIn(o.RunDir), last: link.Attrs().Name}, nil
}

// ErrNoBridgeYet is returned until ovs-vswitchd has made the interface, whose link event triggers the next reconciliation.
var ErrNoBridgeYet = errors.New("the interface of bridge " + providerbridge.Tunnels + " is not there yet")

// reconcile takes the next step of the move and returns the tunnel endpoint's address. The address is known before the bridge is
// complete; then the error is ErrNoBridgeYet. Addresses and routes are stored in the database before they are moved.
func (t *Tunnels) reconcile(ctx context.Context, db *client.Client) (netip.Addr, error) {
	have, err := database.Read(ctx, db, providerbridge.Tunnels)
	if err != nil {
		return netip.Addr{}, err
	}
	known, err := memoryIn(have)
	if err != nil {
		return netip.Addr{}, err
	}
	link, err := tunnelInterface(t.options)
	if err != nil {
		return netip.Addr{}, err
	}
	bridge, err := kernel.Link(providerbridge.Tunnels)
	if err != nil {
		return netip.Addr{}, err
	}
	if old := known.Uplink; old != "" && old != link.Attrs().Name {
		if err := t.giveBack(ctx, known, bridge); err != nil {
			return netip.Addr{}, err
		}
	}
	seen, err := observe(link, bridge)
	if err != nil {
		return netip.Addr{}, err
	}
	if known, err = known.renamed(have, link, seen); err != nil {
		return netip.Addr{}, err
	}
	plan := kernel.Plan(link.Attrs().Name, known.plain(), seen)
	if len(plan.Memory.Addresses) == 0 {
		return netip.Addr{}, noAddress(t.options, link)
	}
	text, err := json.Marshal(memoryOf(plan.Memory))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("encode the memory of bridge %s: %w", providerbridge.Tunnels, err)
	}
	spec := database.Spec{
		Name: providerbridge.Tunnels, Datapath: v1alpha1.DatapathUserspace, MAC: link.Attrs().HardwareAddr.String(), ExternalIDs: map[string]string{memoryKey: string(text)},
		Uplink: link.Attrs().Name, Former: isNoPatch,
	}
	if err := spec.Ensure(ctx, db, have); err != nil {
		return netip.Addr{}, err
	}
	t.moved = memoryOf(plan.Memory)
	address := plan.Memory.Addresses[0].Prefix.Addr()
	if bridge == nil {
		return address, ErrNoBridgeYet
	}
	if err := kernel.Apply(plan, link, bridge, nil); err != nil {
		return address, err
	}
	return address, t.shield(ctx, link)
}

// observe reads what br-phy takes over of both interfaces: prefixes of addresses, and configured routes.
func observe(link, bridge netlink.Link) (kernel.Observed, error) {
	seen, err := kernel.Observe(link, bridge)
	seen.UplinkAddresses = kernel.Plain(kernel.Prefixes(seen.UplinkAddresses))
	seen.BridgeAddresses = kernel.Plain(kernel.Prefixes(seen.BridgeAddresses))
	return seen, err
}

func (t *Tunnels) shield(ctx context.Context, link netlink.Link) error {
	of, err := kernel.ShieldedFor(link)
	if err != nil || t.shielded.covers(of) {
		return err
	}
	if err := TunnelShield.Raise(ctx, link.Attrs().Name, of); err != nil {
		return err
	}
	t.shielded = raised{of, time.Now()}
	return nil
}

// giveBack moves addresses and routes from the bridge back to a former uplink.
func (t *Tunnels) giveBack(ctx context.Context, m memory, bridge netlink.Link) error {
	former, err := kernel.Link(m.Uplink)
	if err != nil {
		return err
	}
	if former == nil {
		return nil // the interface was deleted: nothing to give the addresses back to
	}
	t.options.Log.Info("giving addresses back to the former tunnel interface", "interface", m.Uplink, "addresses", m.Addresses)
	if err := TunnelShield.Drop(ctx); err != nil {
		return err
	}
	t.shielded = raised{}
	addresses, from := kernel.Plain(m.Addresses), former
	if bridge != nil {
		if err := kernel.RemoveAddresses(bridge, addresses, nil); err != nil {
			return err
		}
		from = bridge
	}
	return kernel.Apply(kernel.Moves{AddAddresses: addresses, AddRoutes: m.Routes}, from, former, nil)
}

// Leave gives addresses and routes back after ovs-vswitchd has ended, which leaves br-phy's interface without carrier, if the node's address is one of them.
// The node would otherwise have no network by which the kubelet gets the next pod. The next ovs-vswitchd makes the interface again.
func (t *Tunnels) Leave(ctx context.Context) error {
	if !slices.ContainsFunc(t.moved.Addresses, func(a netip.Prefix) bool { return a.Addr().String() == t.options.NodeAddress }) {
		return nil
	}
	added := t.giveBack(ctx, memory{Uplink: t.moved.Uplink, Addresses: t.moved.Addresses}, nil)
	bridge, err := kernel.Link(providerbridge.Tunnels)
	if err == nil && bridge != nil { // also if an address was refused: the others are not used while it is there
		err = netlink.LinkDel(bridge)
	}
	if err != nil {
		return errors.Join(added, fmt.Errorf("remove the interface of %s: %w", providerbridge.Tunnels, err))
	}
	return t.giveBack(ctx, t.moved, nil)
}

// renamed returns the memory with the name of the uplink if the uplink is the former one under another name. All addresses of the uplink are
// then in the memory: the kernel may have configured some again, from router advertisements. The bridge has the hardware address of
// the former uplink.
func (m memory) renamed(have database.Bridge, link netlink.Link, seen kernel.Observed) (memory, error) {
	other := func(a kernel.Address) bool { return !slices.Contains(m.Addresses, a.Prefix) }
	if m.Uplink == "" || slices.ContainsFunc(seen.UplinkAddresses, other) {
		return m, nil
	}
	former, err := kernel.Link(m.Uplink)
	if err == nil && former == nil && have.Row.OtherConfig["hwaddr"] == link.Attrs().HardwareAddr.String() {
		m.Uplink = link.Attrs().Name
	}
	return m, err
}

// ReleaseTunnels gives addresses and routes back to the tunnel interface.
func ReleaseTunnels(ctx context.Context, db *client.Client, o Options) error {
	have, err := database.Read(ctx, db, providerbridge.Tunnels)
	if err != nil {
		return err
	}
	known, err := memoryIn(have)
	if err != nil || known.Uplink == "" {
		return err
	}
	bridge, err := kernel.Link(providerbridge.Tunnels)
	if err != nil {
		return err
	}
	return (&Tunnels{options: o}).giveBack(ctx, known, bridge)
}
