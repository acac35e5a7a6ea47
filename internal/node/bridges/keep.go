// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

// keep keeps a bridge complete after its move: ovs-vswitchd makes its interface again at each start, and the interface can get addresses.
func (m *Mover) keep(ctx context.Context, n network) providerbridge.Result {
	bridge, name := n.bridge, n.request.Interface
	link, err := kernel.Link(name)
	if err != nil {
		return failure(err)
	}
	if link == nil {
		return failed(providerbridge.ReasonNoInterface, "the node no longer has the interface %s", name)
	}
	if err := m.directory.While(ctx, bridge, "write bridge", func() error { return m.write(ctx, n, link, true) }); err != nil {
		return m.interrupted(bridge, err)
	}
	if made, err := kernel.Link(bridge); err != nil || made == nil {
		return failure(errors.Join(fmt.Errorf("ovs-vswitchd has not made the interface %s yet", bridge), err))
	}
	moved, err := m.directory.Move(ctx, bridge)
	if err != nil {
		return m.interrupted(bridge, err)
	}
	if lost, err := m.renew(ctx, bridge); err != nil || lost != nil {
		return m.notRenewed(ctx, n, lost, err)
	}
	if err := m.shield(ctx, bridge, link); err != nil {
		return m.interrupted(bridge, err)
	}
	if err := errors.Join(m.directory.Step.Before("write ovn-bridge-mappings"), database.Map(ctx, n.db, n.provider, true)); err != nil {
		return failure(err)
	}
	warning, err := m.stranded(bridge, name)
	if err != nil {
		return failure(err)
	}
	return providerbridge.Result{State: providerbridge.StateReady, Message: warning, MTU: link.Attrs().MTU, Moved: moved}
}

// write writes the bridge to the database, with the interface if it is attached.
func (m *Mover) write(ctx context.Context, n network, link netlink.Link, attached bool) error {
	have, err := database.Read(ctx, n.db, n.bridge)
	if err != nil {
		return err
	}
	spec := m.spec(n, link)
	if attached {
		spec.Uplink = link.Attrs().Name
	}
	return spec.Ensure(ctx, n.db, have)
}

// spec is the bridge of a provider network, without an uplink.
func (m *Mover) spec(n network, link netlink.Link) database.Spec {
	return database.Spec{
		Name: n.bridge, Datapath: m.options.Datapath, MAC: link.Attrs().HardwareAddr.String(),
		ExternalIDs: map[string]string{providerbridge.PortKey: n.provider}, PortIDs: map[string]string{providerbridge.PortKey: n.provider},
		Former: func(port vswitch.Port) bool { return port.ExternalIDs[providerbridge.PortKey] != "" },
	}
}

// shield keeps the node's own stack from answering what the bridge answers, in the userspace datapath.
func (m *Mover) shield(ctx context.Context, bridge string, link netlink.Link) error {
	if m.options.kernel() {
		return nil
	}
	of, err := kernel.ShieldedFor(link)
	m.wake(Refresh)
	if err != nil || m.raised[bridge].covers(of) {
		return err
	}
	err = m.directory.While(ctx, bridge, "raise the shield of "+bridge, func() error {
		return kernel.ShieldOf(bridge).Raise(ctx, link.Attrs().Name, of)
	})
	if err != nil {
		return err
	}
	m.raised[bridge] = raised{of, time.Now()}
	return nil
}

// stranded returns a warning about an address that the interface has got since its move, and that the network does not reach there; empty for none.
func (m *Mover) stranded(bridge, name string) (message string, err error) {
	stay, err := m.directory.Stranded(bridge)
	if err != nil || len(stay) == 0 {
		return "", err
	}
	return fmt.Sprintf("the network does not reach the IPv6 address %s on interface %s: give it the prefix length of its network, so that it moves to %s, or let the "+
		"program that adds it use %s", stay[0], name, bridge, bridge), nil
}

// TunnelShield is the nftables table of br-phy's uplink.
const TunnelShield kernel.Shield = "kiln-uplink"

// Refresh is the interval in which shields are raised again: another program may have flushed them without a notification.
const Refresh = time.Minute

// raised is a shield, and when it was raised.
type raised struct {
	of kernel.Shielded
	at time.Time
}

// covers reports whether the shield need not be raised again.
func (r raised) covers(of kernel.Shielded) bool { return r.of == of && time.Since(r.at) < Refresh }
