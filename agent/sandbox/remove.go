// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Remove deletes the host's end of a veth, and with it the container's. One that is not there is no error.
//
// It returns when the kernel says that the devices are gone, which takes a millisecond. The kernel's answer to the request comes when it
// has freed them as well, after a grace period of RCU: 15 milliseconds that nobody has to wait for.
func Remove(hostName string) error {
	link, err := find(hostName)
	if link == nil {
		return err
	}
	answered := make(chan error, 1)
	gone, stop, err := watchGone(link.Attrs().Index)
	if err != nil {
		return fmt.Errorf("delete link %s: %w", hostName, err)
	}
	defer stop()
	go func() { answered <- netlink.LinkDel(link) }()
	select {
	case <-gone:
	case err := <-answered:
		if err != nil && !isGone(err) {
			return fmt.Errorf("delete link %s: %w", hostName, err)
		}
	}
	return nil
}

// watchGone returns a channel that is closed when the kernel says that a device of the host has been deleted, and a function to call in
// the end. The channel stays open when the kernel had too much to say for the socket: its answer to the request counts then.
func watchGone(index int) (<-chan struct{}, func(), error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return nil, nil, fmt.Errorf("listen to the kernel: %w", err)
	}
	gone := make(chan struct{})
	go func() {
		for {
			messages, _, err := socket.Receive()
			if err != nil { // closed, or it has lost messages
				return
			}
			for _, m := range messages {
				if m.Header.Type != unix.RTM_DELLINK {
					continue
				}
				// A device that only leaves a bridge is announced in the bridge's family.
				if info := nl.DeserializeIfInfomsg(m.Data); info.Family == unix.AF_UNSPEC && int(info.Index) == index {
					close(gone)
					return
				}
			}
		}
	}()
	return gone, socket.Close, nil
}
