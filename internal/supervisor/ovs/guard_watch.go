// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Constants of linux/netfilter/nfnetlink.h.
const (
	nftablesGroup     = 7  // NFNLGRP_NFTABLES
	nftablesSubsystem = 10 // NFNL_SUBSYS_NFTABLES
	nfgenmsgLength    = 4  // struct nfgenmsg, before the attributes
)

// watchTable calls deleted once at the start and whenever a transaction has deleted the guard's table, also one of this process. It returns nil when ctx
// ends. It returns an error when the kernel has lost notifications, as it does for slow readers.
func watchTable(ctx context.Context, deleted func()) error {
	socket, err := nl.Subscribe(unix.NETLINK_NETFILTER, nftablesGroup)
	if err != nil {
		return fmt.Errorf("subscribe to changes of nftables: %w", err)
	}
	defer context.AfterFunc(ctx, socket.Close)()
	defer socket.Close()
	deleted()
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
			if deletesTable(&messages[i], guardTable) {
				deleted()
			}
		}
	}
}

// deletesTable reports whether the message is about the deletion of a table with this name. `nft flush ruleset` causes one message for each table.
func deletesTable(m *syscall.NetlinkMessage, table string) bool {
	if m.Header.Type != nftablesSubsystem<<8|unix.NFT_MSG_DELTABLE || len(m.Data) < nfgenmsgLength {
		return false
	}
	attributes, err := nl.ParseRouteAttr(m.Data[nfgenmsgLength:])
	if err != nil {
		return false
	}
	for _, a := range attributes {
		if a.Attr.Type == unix.NFTA_TABLE_NAME {
			return strings.TrimRight(string(a.Value), "\x00") == table
		}
	}
	return false
}
