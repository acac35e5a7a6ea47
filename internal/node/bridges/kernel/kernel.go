// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// dumps is the maximum number of attempts to dump a list from the kernel.
const dumps = 20

// Whole retries a netlink dump until it is not interrupted (NLM_F_DUMP_INTR). An interrupted dump can lack entries that existed
// all the time. Package netlinksafe returns such a dump after a few attempts; here, a missing address or route would be lost in
// the move to a bridge.
func Whole[T any](dump func() ([]T, error)) (list []T, err error) {
	for range dumps {
		if list, err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return list, err
}

// Link returns an interface, or nil if it does not exist.
func Link(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil //nolint:nilnil // no interface is a state, not a failure
	}
	if err != nil {
		return nil, fmt.Errorf("look for interface %s: %w", name, err)
	}
	return link, nil
}

// Step is called before each change of the kernel, a database or the journal, with its name. The change is not made if it returns an error. It can
// be nil.
type Step func(name string) error

// Before is called before the step.
func (s Step) Before(name string) error {
	if s == nil {
		return nil
	}
	return s(name)
}

// Observe reads the addresses and configured routes of both interfaces; bridge can be nil.
func Observe(uplink, bridge netlink.Link) (Observed, error) {
	var seen Observed
	var errs [4]error
	seen.UplinkAddresses, errs[0] = Addresses(uplink)
	seen.UplinkRoutes, errs[1] = Routes(uplink)
	if bridge != nil {
		seen.BridgeAddresses, errs[2] = Addresses(bridge)
		seen.BridgeRoutes, errs[3] = Routes(bridge)
	}
	return seen, errors.Join(errs[:]...)
}

// Apply carries out the moves. Each step is idempotent: a previous attempt, or the kernel as a consequence of another step, may
// have done it already.
func Apply(m Moves, uplink, bridge netlink.Link, step Step) error {
	for _, link := range []netlink.Link{uplink, bridge} {
		if err := setUp(link, step); err != nil {
			return err
		}
	}
	for _, a := range asAdded(m.AddAddresses) {
		if err := addAddress(bridge, a.ofBridge(), step); err != nil {
			return err
		}
	}
	for _, r := range m.AddRoutes {
		if r.isKernel() {
			continue // the kernel adds it with the address: see ofBridge
		}
		if err := addRoute(bridge, uplink, r, step); err != nil {
			return err
		}
	}
	if err := addNeighbours(bridge, m.AddNeighbours, step); err != nil {
		return err
	}
	if err := removeRoutes(uplink, m.ClearRoutes, step); err != nil {
		return err
	}
	if err := RemoveAddresses(uplink, m.ClearAddresses, step); err != nil {
		return err
	}
	return removeOnLink(uplink, step)
}

// asAdded returns addresses in the order in which they must be added to be listed in the given order: the kernel puts a new IPv6 address before
// the others of its scope.
func asAdded(list []Address) []Address {
	is4 := func(a Address) bool { return a.Prefix.Addr().Is4() }
	six := slices.DeleteFunc(slices.Clone(list), is4)
	slices.Reverse(six)
	return append(slices.DeleteFunc(slices.Clone(list), func(a Address) bool { return !is4(a) }), six...)
}

func setUp(link netlink.Link, step Step) error {
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	if err := step.Before("set " + link.Attrs().Name + " up"); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", link.Attrs().Name, err)
	}
	return nil
}

func addAddress(link netlink.Link, a Address, step Step) error {
	if a.expired(SinceBoot()) {
		return nil
	}
	if err := step.Before("add " + a.Prefix.String() + " to " + link.Attrs().Name); err != nil {
		return err
	}
	return setAddress(link, a)
}

func setAddress(link netlink.Link, a Address) error {
	if err := netlink.AddrReplace(link, a.on(SinceBoot())); err != nil {
		return fmt.Errorf("add address %s to %s: %w", a.Prefix, link.Attrs().Name, err)
	}
	return nil
}

// AddAddress adds an address, without duplicate address detection.
func AddAddress(link netlink.Link, a netip.Prefix) error {
	return addAddress(link, Address{Prefix: a, Plain: true}, nil)
}

func addRoute(link, from netlink.Link, r Route, step Step) error {
	if err := step.Before("add route " + r.String() + " to " + link.Attrs().Name); err != nil {
		return err
	}
	if err := r.replace(link, from); err != nil {
		return fmt.Errorf("add route %s to %s: %w", r, link.Attrs().Name, err)
	}
	return nil
}

// addNeighbours adds the entries of the neighbour table. A neighbour that cannot be added is resolved when it is needed.
func addNeighbours(link netlink.Link, list []Neighbour, step Step) error {
	if len(list) == 0 {
		return nil
	}
	if err := step.Before("add neighbours to " + link.Attrs().Name); err != nil {
		return err
	}
	for _, n := range list {
		if made, err := n.on(link); err == nil {
			_ = netlink.NeighSet(made)
		}
	}
	return nil
}

// RemoveAddresses removes addresses from an interface. Addresses that it does not have are skipped.
func RemoveAddresses(link netlink.Link, list []Address, step Step) error {
	for _, a := range list {
		if err := step.Before("remove " + a.Prefix.String() + " from " + link.Attrs().Name); err != nil {
			return err
		}
		address := &netlink.Addr{IPNet: netipx.PrefixIPNet(a.Prefix)}
		if a.Peer.IsValid() {
			address.Peer = netipx.PrefixIPNet(a.Peer)
		}
		err := netlink.AddrDel(link, address)
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove address %s from %s: %w", a.Prefix, link.Attrs().Name, err)
		}
	}
	return nil
}

func removeRoutes(link netlink.Link, list []Route, step Step) error {
	for _, r := range list {
		if err := step.Before("remove route " + r.String() + " from " + link.Attrs().Name); err != nil {
			return err
		}
		err := netlink.RouteDel(r.on(link))
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("remove route %s from %s: %w", r, link.Attrs().Name, err)
		}
	}
	return nil
}

// removeOnLink removes the IPv6 routes to networks in which the interface has no address. The kernel keeps the route to an advertised prefix when it loses
// an address with a lifetime, and would use it before the route of the interface that has the address now.
func removeOnLink(link netlink.Link, step Step) error {
	has, err := addresses(link, true)
	if err != nil {
		return err
	}
	left, err := routes(link, func(r netlink.Route) bool {
		network := ipfamily.PrefixOf(r.Dst)
		inside := func(a Address) bool { return network.Contains(a.Prefix.Addr()) || network.Contains(a.Peer.Addr()) }
		return r.Family == netlink.FAMILY_V6 && r.Protocol == unix.RTPROT_KERNEL && network.IsValid() &&
			!network.Addr().IsLinkLocalUnicast() && !slices.ContainsFunc(has, inside)
	})
	if err != nil {
		return err
	}
	return removeRoutes(link, left, step)
}

// Extend gives the entries of a bridge the ends that they have in another state.
func Extend(link netlink.Link, before, after State, step Step) error {
	for i, a := range after.Addresses {
		if a == before.Addresses[i] {
			continue
		}
		if err := addAddress(link, a.ofBridge(), step); err != nil {
			return err
		}
	}
	for i, r := range after.Routes {
		if r == before.Routes[i] {
			continue
		}
		if err := addRoute(link, nil, r, step); err != nil {
			return err
		}
	}
	return nil
}

// ObserveMove reads what a move concerns on both interfaces, without addresses that stay on the uplink. before is the state that moves.
func ObserveMove(uplink, bridge netlink.Link, before State) (Observed, error) {
	from, err := configuration(uplink, before.Addresses...)
	if err != nil {
		return Observed{}, err
	}
	to, err := configuration(bridge, before.Addresses...)
	wide := wideFamilies(append(slices.Clone(before.Addresses), to.Addresses...))
	from.Addresses = slices.DeleteFunc(from.Addresses, func(a Address) bool { return a.stays(wide) && !contains(before.Addresses, a) })
	return Observed{UplinkAddresses: from.Addresses, UplinkRoutes: from.Routes, BridgeAddresses: to.Addresses, BridgeRoutes: to.Routes}, err
}

// On reports whether a bridge has addresses of each family that it has taken over, or a route if there are none. Single ones are removed by programs
// and people; a bridge without any was made again, and no process moves them to it.
func (s State) On(bridge netlink.Link) (bool, error) {
	if len(s.Addresses) == 0 {
		has, err := configuration(bridge)
		return len(has.Routes) > 0, err
	}
	has, err := addresses(bridge, true)
	if err != nil {
		return false, err
	}
	wanted, found := map[bool]bool{}, map[bool]bool{}
	for _, a := range s.Addresses { // also if all have ended: their owner can get others at the interface
		wanted[a.Prefix.Addr().Is4()] = true
		found[a.Prefix.Addr().Is4()] = found[a.Prefix.Addr().Is4()] || contains(has, a)
	}
	return maps.Equal(wanted, found), nil
}
