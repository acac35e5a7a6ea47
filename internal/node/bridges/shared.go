// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"context"
	"fmt"

	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

// In the userspace datapath, br-phy has the tunnel interface, and the node's addresses if it has any. A provider network on this interface moves nothing: patch
// ports connect its bridge with br-phy.

// sharesTunnels reports whether the interface of a provider network is the tunnel interface, in the userspace datapath.
func (m *Mover) sharesTunnels(q providerbridge.Request) bool {
	return !m.options.kernel() && q.Interface == m.options.TunnelInterface
}

// patchTo and patchFrom are the names of the patch ports on the bridge of a provider network and on br-phy.
func patchTo(provider string) string   { return provider + "-to-" + providerbridge.Tunnels }
func patchFrom(provider string) string { return providerbridge.Tunnels + "-to-" + provider }

// share connects the bridge of a provider network with br-phy.
func (m *Mover) share(ctx context.Context, n network) providerbridge.Result {
	db, q := n.db, n.request
	tunnels, err := database.Read(ctx, db, providerbridge.Tunnels)
	if err != nil {
		return failure(err)
	}
	taken, err := memoryIn(tunnels)
	if err != nil {
		return failure(err)
	}
	if tunnels.Row == nil || taken.Uplink != q.Interface {
		return failure(fmt.Errorf("bridge %s does not have interface %s yet", providerbridge.Tunnels, q.Interface))
	}
	link, err := kernel.Link(q.Interface)
	if err != nil {
		return failure(err)
	}
	if link == nil {
		return failed(providerbridge.ReasonNoInterface, "the node no longer has the interface %s", q.Interface)
	}
	own := m.spec(n, link)
	own.Uplink, own.Peer = patchTo(n.provider), patchFrom(n.provider)
	have, err := database.Read(ctx, db, own.Name)
	if err == nil {
		err = own.Ensure(ctx, db, have)
	}
	if err != nil {
		return failure(err)
	}
	far := database.Spec{Name: providerbridge.Tunnels, Uplink: own.Peer, Peer: own.Uplink, PortIDs: own.PortIDs}
	operations, err := far.AddUplink(db, tunnels)
	if err == nil && len(operations) > 0 {
		_, err = database.Transact(ctx, db, operations)
	}
	if err != nil {
		return failure(fmt.Errorf("connect bridge %s with %s: %w", providerbridge.Tunnels, own.Name, err))
	}
	if err := database.Map(ctx, db, n.provider, true); err != nil {
		return failure(err)
	}
	return providerbridge.Result{State: providerbridge.StateReady, MTU: link.Attrs().MTU}
}

// stopSharing removes the patch port of a provider network from br-phy.
func stopSharing(ctx context.Context, db *client.Client, provider string) error {
	return database.Detach(ctx, db, providerbridge.Tunnels, patchFrom(provider))
}

// sharing returns the provider network that br-phy is connected with; empty if there is none.
func sharing(ctx context.Context, db *client.Client) (string, error) {
	tunnels, err := database.Read(ctx, db, providerbridge.Tunnels)
	for _, port := range tunnels.Ports {
		if provider := port.ExternalIDs[providerbridge.PortKey]; provider != "" {
			return provider, nil
		}
	}
	return "", err
}

// isNoPatch reports whether a port is not the patch port of a provider network.
func isNoPatch(port vswitch.Port) bool { return port.ExternalIDs[providerbridge.PortKey] == "" }
