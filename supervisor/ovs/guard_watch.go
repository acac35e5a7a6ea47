// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor"
)

// Constants of linux/netfilter/nfnetlink.h.
const (
	nftablesGroup     = 7  // NFNLGRP_NFTABLES
	nftablesSubsystem = 10 // NFNL_SUBSYS_NFTABLES
)

// run keeps the table of node as the newest OVNCluster requires, until ctx ends. It depends on no daemon of the node.
func (g *guard) run(ctx context.Context, node string, clusters <-chan *v1alpha1.OVNCluster) {
	touched := make(chan struct{}, 1)
	var watch sync.WaitGroup
	watch.Go(func() {
		supervisor.Retry(ctx, func(err error) { g.log.Error(err, "subscribing to changes of nftables again") }, func() error {
			return watchTable(ctx, func() {
				select {
				case touched <- struct{}{}:
				default: // a change is pending already
				}
			})
		})
	})
	defer watch.Wait()
	g.keep(ctx, node, clusters, touched)
}

// keep applies the limits at each change of the OVNCluster, whenever a transaction has touched the table, and in intervals: an event can be lost.
func (g *guard) keep(ctx context.Context, node string, clusters <-chan *v1alpha1.OVNCluster, touched <-chan struct{}) {
	ticker := time.NewTicker(g.refresh)
	defer ticker.Stop()
	for {
		var retry <-chan time.Time
		if err := g.apply(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			g.log.Error(err, "the access to the databases' ports of this node is not limited as it should be; trying again")
			retry = time.After(retryDelay)
		}
		select {
		case <-ctx.Done():
			return
		case cluster := <-clusters:
			g.follow(cluster, node)
		case <-touched:
		case <-ticker.C:
		case <-retry:
		}
	}
}

// watchTable calls touched once at the start and whenever a transaction has changed the guard's table, also one of this process. It returns nil when ctx
// ends. It returns an error when the kernel has lost notifications, as it does for slow readers.
func watchTable(ctx context.Context, touched func()) error {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER, nftablesGroup)
	if err != nil {
		return fmt.Errorf("subscribe to changes of nftables: %w", err)
	}
	defer context.AfterFunc(ctx, socket.Close)()
	defer socket.Close()
	touched()
	for {
		messages, _, err := socket.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("receive changes of nftables: %w", err)
		}
		for i := range messages {
			if touchesTable(&messages[i], guardTable) {
				touched()
				break
			}
		}
	}
}

// touchesTable reports whether the message is about a table of the inet family with this name, or about a chain, a rule, a set or an element in it.
// `nft flush ruleset` causes messages for each object.
func touchesTable(m *syscall.NetlinkMessage, table string) bool {
	if m.Header.Type>>8 != nftablesSubsystem || len(m.Data) == 0 || m.Data[0] != unix.NFPROTO_INET {
		return false
	}
	return tableOf(attributesOf(m.Data)) == table
}
