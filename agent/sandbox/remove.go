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

// doomed is the group (ip-link(8)) of links that are about to be deleted; "kiln" in ASCII, so that it is nobody else's. What a
// crash leaves in it goes with the next ones.
const doomed = 0x6b696c6e

// removals are deletions of links. The kernel deletes one at a time, with a grace period of RCU for each, but a group of links with
// one for all. So those that come while one is under way are deleted together.
var removals struct {
	sync.Mutex
	waiting []removal
	working bool
}

type removal struct {
	link netlink.Link
	done chan error
}

// Remove deletes the host's end of a veth, and with it the container's. One that is not there is no error.
//
// It returns when the kernel says that the devices are gone, which takes a millisecond. The kernel's answer to the request comes when it
// has freed them as well, after a grace period of RCU: 15 milliseconds that nobody has to wait for.
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

// RemoveAll deletes the host's ends of all links to containers, and nobody else's links.
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

// removeAll deletes what waits, until nothing does.
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

// deleteLinks returns when the kernel has freed the devices.
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

// watchGone returns a channel that is closed when the kernel has said of all these devices of the host that they are deleted, and a function
// to call in the end. The channel stays open when the kernel had too much to say for the socket: its answer to the request counts then.
func watchGone(indexes map[int]bool) (<-chan struct{}, func(), error) {
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
