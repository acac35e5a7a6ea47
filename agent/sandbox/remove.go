// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"sync"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// doomed is the group (ip-link(8)) of links that are about to be deleted. It is "kiln" in ASCII, so that it does not collide with other
// groups. Links that a crash leaves in the group are deleted with the next batch.
const doomed = 0x6b696c6e

// removals are pending deletions of links. The kernel serializes deletions and waits for an RCU grace period in each request, but a
// request that deletes a group of links waits only once. Removals that arrive while one is in progress are therefore deleted as one
// batch.
var removals struct {
	sync.Mutex
	waiting []removal
	working bool
}

type removal struct {
	link netlink.Link
	done chan error
}

// Remove deletes the host's end of a veth, and with it the container's end. It succeeds if the link does not exist.
//
// It returns when the kernel has announced the deletion, after about a millisecond. The kernel acknowledges the request only after it has
// freed the devices, an RCU grace period (15 milliseconds) later. No caller needs to wait for that.
func Remove(hostName string) error {
	link, err := find(hostName)
	if link == nil {
		return err
	}
	r := removal{link: link, done: make(chan error, 1)}
	removals.Lock()
	removals.waiting = append(removals.waiting, r)
	if !removals.working {
		removals.working = true
		go removeAll()
	}
	removals.Unlock()
	if err := <-r.done; err != nil {
		return fmt.Errorf("delete link %s: %w", hostName, err)
	}
	return nil
}

// RemoveAll deletes the host's ends of all links to containers, and no other links.
func RemoveAll() error {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	var failed []error
	for _, link := range links {
		if link.Type() == "veth" && named(link.Attrs().Name) {
			failed = append(failed, Remove(link.Attrs().Name))
		}
	}
	return errors.Join(failed...)
}

// removeAll deletes pending removals in batches until none is left.
func removeAll() {
	for {
		removals.Lock()
		batch := removals.waiting
		removals.waiting, removals.working = nil, len(batch) > 0
		removals.Unlock()
		if len(batch) == 0 {
			return
		}
		err := removeBatch(batch)
		for _, r := range batch {
			r.done <- err
		}
	}
}

func removeBatch(batch []removal) error {
	indexes := map[int]bool{}
	for _, r := range batch {
		indexes[r.link.Attrs().Index] = true
	}
	gone, stop, err := watchGone(indexes)
	if err != nil {
		return err
	}
	defer stop()
	answered := make(chan error, 1)
	go func() { answered <- deleteLinks(batch) }()
	select {
	case <-gone:
		return nil
	case err := <-answered:
		return err
	}
}

// deleteLinks returns after the kernel has freed the devices.
func deleteLinks(batch []removal) error {
	if len(batch) == 1 {
		return unlessGone(netlink.LinkDel(batch[0].link))
	}
	var errs []error
	for _, r := range batch {
		errs = append(errs, unlessGone(netlink.LinkSetGroup(r.link, doomed)))
	}
	request := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	request.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	request.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(doomed)))
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return errors.Join(append(errs, unlessGone(err))...)
}

func unlessGone(err error) error {
	if isGone(err) {
		return nil
	}
	return err
}

// watchGone returns a channel that is closed when the kernel has announced the deletion of all these devices of the host, and a function
// that ends the watch. If the socket overflows, the channel stays open, and the caller must use the kernel's acknowledgement of the
// request.
func watchGone(indexes map[int]bool) (<-chan struct{}, func(), error) {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return nil, nil, fmt.Errorf("listen to the kernel: %w", err)
	}
	gone := make(chan struct{})
	go func() {
		for {
			messages, _, err := socket.Receive()
			if err != nil { // closed, or messages were lost
				return
			}
			for _, m := range messages {
				if m.Header.Type != unix.RTM_DELLINK {
					continue
				}
				// The kernel announces a device that leaves a bridge, but still exists, with the bridge's family.
				if info := nl.DeserializeIfInfomsg(m.Data); info.Family == unix.AF_UNSPEC {
					delete(indexes, int(info.Index))
				}
				if len(indexes) == 0 {
					close(gone)
					return
				}
			}
		}
	}()
	return gone, socket.Close, nil
}
