// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// GiveBack adds the state to the interface before it removes it from the bridge, so that the node always has its addresses. It returns what the kernel
// refuses for good, for example IPv6 addresses after IPv6 was disabled, or routes while the interface of another hop is down. Neither this nor an error, after which a
// restoration is repeated, keeps the rest from being restored.
func GiveBack(before State, link, bridge netlink.Link, step Step) (refused, err error) {
	var stopped error
	last := func(name string) error { // after a step that may not be made, no other one is
		if stopped == nil {
			stopped = step.Before(name)
		}
		return stopped
	}
	var errs []error
	do := func(err error) { errs = append(errs, err) }
	if before.Carries() != "" {
		do(setUp(link, last))
	}
	refused, err = giveAddresses(before, link, last)
	do(err)
	do(addNeighbours(link, before.knownNow(bridge), last))
	_, err = giveRoutes(before, link, bridge, last)
	do(err)
	if bridge != nil {
		do(removeRoutes(bridge, before.Routes, last))
		do(RemoveAddresses(bridge, before.Addresses, last))
		do(removeOnLink(bridge, last))
	}
	do(giveFlags(before, link, last))
	routes, err := giveRoutes(before, link, bridge, last) // the kernel removed routes whose source was the bridge's address for a moment
	if do(err); stopped != nil {
		return nil, stopped
	}
	return errors.Join(refused, routes), errors.Join(errs...)
}

// giveAddresses adds addresses to the interface. IPv6 addresses are refused while IPv6 is disabled on it.
func giveAddresses(before State, link netlink.Link, step Step) (refused, err error) {
	has, err := configuration(link)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, a := range asAdded(without(before.Addresses, has.Addresses)) {
		err := addAddress(link, a, step)
		if a.Prefix.Addr().Is6() && errors.Is(err, unix.EACCES) {
			refused = errors.Join(refused, err)
			continue
		}
		errs = append(errs, err)
	}
	return refused, errors.Join(errs...)
}

// giveFlags gives the interface its MTU, and ends a promiscuous mode that it did not have.
func giveFlags(before State, link netlink.Link, step Step) error {
	name := link.Attrs().Name
	if before.MTU != 0 && link.Attrs().MTU != before.MTU {
		if err := step.Before("set the MTU of " + name); err != nil {
			return err
		}
		if err := netlink.LinkSetMTU(link, before.MTU); err != nil {
			return fmt.Errorf("set the MTU of %s: %w", name, err)
		}
	}
	if !promiscuous(link) || before.Promiscuous {
		return nil
	}
	if err := step.Before("end the promiscuous mode of " + name); err != nil {
		return err
	}
	if err := netlink.SetPromiscOff(link); err != nil {
		return fmt.Errorf("end the promiscuous mode of %s: %w", name, err)
	}
	return nil
}

// giveRoutes adds routes to the interface. Of a multipath route that the kernel refuses, it adds the hops of the interface.
func giveRoutes(before State, link, bridge netlink.Link, step Step) (refused, err error) {
	has, err := configuration(link)
	if err != nil {
		return nil, err
	}
	for _, r := range without(before.Routes, has.Routes) {
		if r = before.ofUplink(r); contains(has.Routes, r) {
			continue
		}
		if err := step.Before("add route " + r.String() + " to " + link.Attrs().Name); err != nil {
			return nil, err
		}
		err := r.replace(link, bridge)
		if err == nil {
			continue
		}
		refused = errors.Join(refused, fmt.Errorf("add route %s to %s: %w", r, link.Attrs().Name, err))
		if own := r.ownHops(); own.Hops != r.Hops {
			_ = own.replace(link, bridge)
		}
	}
	return refused, nil
}
