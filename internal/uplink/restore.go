// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Return records that a move must be undone, for which PutBack or a guard is responsible then. It returns the journal; nil if there is none.
func (d Directory) Return(ctx context.Context, bridge, cause string) (j *Journal, err error) {
	err = d.locked(ctx, func() error {
		if j, err = d.Read(bridge); err != nil || j == nil {
			return err
		}
		if err := d.markReturned(j, cause); err != nil && !errors.Is(err, errNotWritten) { // like in putBackIf
			return err
		}
		return nil
	})
	return j, err
}

func (d Directory) markReturned(j *Journal, cause string) error {
	if j.Phase == PhaseReturned {
		return nil
	}
	if j.Failures++; j.Phase == PhaseMoved && sinceBoot()-j.Since > settled {
		j.Failures = 0
	}
	j.Phase, j.Since, j.Cause, j.Undone = PhaseReturned, sinceBoot(), cause, time.Now().UTC().Truncate(time.Second)
	return d.write(j)
}

// PutBack restores the interface of a bridge: addresses, routes, neighbours and MTU. It needs neither Open vSwitch nor its database. It removes the port
// from the bridge in the database, if that is reached.
func (d Directory) PutBack(ctx context.Context, bridge, cause string) error {
	return d.putBackIf(ctx, bridge, func(j *Journal) (string, bool) { return cause, !j.Done })
}

// Leave is PutBack of what a node can need, for an end that is no failure of the move, so that no pause follows.
func (d Directory) Leave(ctx context.Context, bridge, cause string) error {
	return d.putBackIf(ctx, bridge, func(j *Journal) (string, bool) {
		if j.Phase == PhaseMoved {
			j.Failures = -1
		}
		return cause, !j.Done && j.Before.Carries() != ""
	})
}

// putBackIf restores the interface if, while no other process changes it, the condition is true.
func (d Directory) putBackIf(ctx context.Context, bridge string, is func(*Journal) (cause string, is bool)) error {
	return d.locked(ctx, func() error {
		j, err := d.Read(bridge)
		if err != nil || j == nil {
			return err
		}
		cause, is := is(j)
		if !is {
			return nil
		}
		// Without space for the journal, the interface is restored all the same, and again until the journal is written.
		if err := d.markReturned(j, cause); err != nil && !errors.Is(err, errNotWritten) {
			return err
		}
		if j.Done { // attached again
			return d.free(ctx, j, d.checked(j))
		}
		if err := d.restore(ctx, j); err != nil {
			return err
		}
		j.Done = true
		return d.write(j)
	})
}

// restore gives everything back, even if the interface cannot be freed: then it is not complete, and tried again.
func (d Directory) restore(ctx context.Context, j *Journal) error {
	step := d.checked(j)
	freed := d.free(ctx, j, step)
	link, err := Link(j.Uplink)
	if err != nil || link == nil { // without the interface there is nothing to give the addresses back to
		return errors.Join(freed, err)
	}
	bridge, err := Link(j.Bridge)
	if err != nil {
		return errors.Join(freed, err)
	}
	refused, err := giveBack(j.Before, link, bridge, step)
	if refused != nil {
		d.Log.Error(refused, "addresses or routes could not be restored", "interface", j.Uplink)
		j.Cause += ". The kernel refused to restore: " + refused.Error()
	}
	return errors.Join(freed, err)
}

// free makes the node's own stack receive the packets that arrive at the interface.
func (d Directory) free(ctx context.Context, j *Journal, step Step) error {
	switch taken, err := d.taken(j); {
	case err != nil:
		return err
	case taken:
		return errNotOurs
	}
	if err := step.Before("remove port " + j.Uplink); err != nil {
		return err
	}
	found, removed := d.removePort(ctx, j)
	if !j.Kernel {
		if err := step.Before("drop the shield of " + j.Bridge); err != nil {
			return err
		}
		return ShieldOf(j.Bridge).Drop(ctx)
	}
	switch {
	case removed != nil:
		d.stopSwitch(ctx)
	case j.Done && !found:
		return errNotOurs
	}
	if err := step.Before("detach " + j.Uplink); err != nil {
		return err
	}
	return detach(j.Uplink)
}

// taken reports whether another provider network has taken the interface since it was restored.
func (d Directory) taken(j *Journal) (bool, error) {
	if !j.Done {
		return false, nil
	}
	bridges, err := d.List()
	if err != nil {
		return false, err
	}
	for _, bridge := range bridges {
		other, err := d.Read(bridge)
		if err == nil && other != nil && other.Bridge != j.Bridge && other.Uplink == j.Uplink && !other.Done {
			return true, nil
		}
	}
	return false, nil
}

// giveBack adds the state to the interface before it removes it from the bridge, so that the node always has its addresses. It returns what the kernel
// refuses for good, for example IPv6 addresses after IPv6 was disabled, or routes while the interface of another hop is down. Neither this nor an error, after which a
// restoration is repeated, keeps the rest from being restored.
func giveBack(before State, link, bridge netlink.Link, step Step) (refused, err error) {
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

// giveAddresses adds addresses to the interface. Those of IPv6 are refused while IPv6 is disabled on it.
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
