// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// watchKernel calls changed, first once, then for every change of links, addresses and routes that may concern the tunnel interface
// or its bridge. It returns nil when ctx ends, and an error when the kernel dropped a subscription, which it does to slow readers.
func watchKernel(ctx context.Context, changed func()) error {
	ctx, cancel := context.WithCancel(ctx)
	links, addresses, routes := make(chan netlink.LinkUpdate), make(chan netlink.AddrUpdate), make(chan netlink.RouteUpdate)
	defer func() { // lets the readers of the sockets end
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
			open, concerns = ok, isMade(update.Route)
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
	for range c { // until it is closed
	}
}

// isGlobal is false for link-local addresses, which every new pod's interface gets.
func isGlobal(update netlink.AddrUpdate) bool {
	address, ok := netip.AddrFromSlice(update.LinkAddress.IP)
	return ok && !address.Unmap().IsLinkLocalUnicast()
}

// isMade is false for routes that the kernel makes with addresses and that are never moved.
func isMade(r netlink.Route) bool {
	return r.Type == unix.RTN_UNICAST && r.Table != unix.RT_TABLE_LOCAL && r.Protocol != unix.RTPROT_KERNEL && r.Protocol != unix.RTPROT_RA
}
