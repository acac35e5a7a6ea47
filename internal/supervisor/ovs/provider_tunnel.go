// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"

	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/providerbridge"
	"github.com/kiln-net/kiln/internal/uplink"
)

// In the userspace datapath, br-phy has the tunnel interface, and the node's addresses if it has any. A provider network on this interface moves nothing: patch
// ports connect its bridge with br-phy.

// sharesTunnels reports whether the interface of a provider network is the tunnel interface, in the userspace datapath.
func (p *providers) sharesTunnels(q providerbridge.Request) bool {
	return !p.kernel() && q.Interface == p.options.TunnelInterface
}

// patchTo and patchFrom are the names of the patch ports on the bridge of a provider network and on br-phy.
func patchTo(provider string) string   { return provider + "-to-" + bridgeName }
func patchFrom(provider string) string { return bridgeName + "-to-" + provider }

// share connects the bridge of a provider network with br-phy.
func (p *providers) share(ctx context.Context, db *client.Client, provider string, q providerbridge.Request) providerbridge.Result {
	tunnels, err := readBridge(ctx, db, bridgeName)
	if err != nil {
		return failure(err)
	}
	if tunnels.row == nil || tunnels.memory.Uplink != q.Interface {
		return failure(fmt.Errorf("bridge %s does not have interface %s yet", bridgeName, q.Interface))
	}
	link, err := uplink.Link(q.Interface)
	if err != nil {
		return failure(err)
	}
	if link == nil {
		return failed(providerbridge.ReasonNoInterface, "the node no longer has the interface %s", q.Interface)
	}
	own := p.spec(provider, link)
	own.uplink, own.peer = patchTo(provider), patchFrom(provider)
	have, err := readBridge(ctx, db, own.name)
	if err == nil {
		err = own.ensure(ctx, db, have)
	}
	if err != nil {
		return failure(err)
	}
	far := bridgeSpec{name: bridgeName, uplink: own.peer, peer: own.uplink, portIDs: own.portIDs}
	operations, err := far.addUplink(db, tunnels)
	if err == nil && len(operations) > 0 {
		_, err = transact(ctx, db, operations)
	}
	if err != nil {
		return failure(fmt.Errorf("connect bridge %s with %s: %w", bridgeName, own.name, err))
	}
	if err := mapBridge(ctx, db, provider, true); err != nil {
		return failure(err)
	}
	return providerbridge.Result{State: providerbridge.StateReady, MTU: link.Attrs().MTU}
}

// stopSharing removes the patch port of a provider network from br-phy.
func stopSharing(ctx context.Context, db *client.Client, provider string) error {
	return detachPort(ctx, db, bridgeName, patchFrom(provider))
}

// sharing returns the provider network that br-phy is connected with; empty if there is none.
func sharing(ctx context.Context, db *client.Client) (string, error) {
	tunnels, err := readBridge(ctx, db, bridgeName)
	for _, port := range tunnels.ports {
		if provider := port.ExternalIDs[providerKey]; provider != "" {
			return provider, nil
		}
	}
	return "", err
}

// isNoPatch reports whether a port is not the patch port of a provider network.
func isNoPatch(port vswitch.Port) bool { return port.ExternalIDs[providerKey] == "" }
