// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
)

// WatchKernel calls changed once at the start, and at each change of links, addresses and routes that may concern an interface that moves, the tunnel
// interface, or a bridge. It returns nil when ctx ends. It returns an error when the kernel ends a subscription, as it does for
// slow readers.
func WatchKernel(ctx context.Context, changed func()) error {
	ctx, cancel := context.WithCancel(ctx)
	links, addresses, routes := make(chan netlink.LinkUpdate), make(chan netlink.AddrUpdate), make(chan netlink.RouteUpdate)
	defer func() { // lets the goroutines that read the sockets end
		cancel()
		go drain(links)
		go drain(addresses)
		go drain(routes)
	}()
	err := errors.Join(
		netlink.LinkSubscribe(links, ctx.Done()),
		netlink.AddrSubscribe(addresses, ctx.Done()),
		netlink.RouteSubscribe(routes, ctx.Done()),
	)
	if err != nil {
		return fmt.Errorf("subscribe to changes of interfaces: %w", err)
	}
	changed()
	for {
		open, concerns := true, true
		select {
		case <-ctx.Done():
			return nil
		case _, open = <-links:
		case update, ok := <-addresses:
			open, concerns = ok, isGlobal(update)
		case update, ok := <-routes:
			open, concerns = ok, kernel.Configured(update.Route)
		}
		if !open {
			return errors.New("the kernel ended a subscription to changes of interfaces")
		}
		if concerns {
			changed()
		}
	}
}

func drain[T any](c <-chan T) {
	for range c { // until the channel is closed
	}
}

// isGlobal is false for link-local addresses, which every new pod interface gets.
func isGlobal(update netlink.AddrUpdate) bool {
	address, ok := netip.AddrFromSlice(update.LinkAddress.IP)
	return ok && !address.Unmap().IsLinkLocalUnicast()
}
