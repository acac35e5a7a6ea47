// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
)

// forever is a lifetime without end (INFINITY_LIFE_TIME).
const forever = 1<<32 - 1

// Address is an address of an interface. Its key is Prefix. Times are since the boot of the node.
type Address struct {
	Prefix    netip.Prefix `json:"prefix"`
	Peer      netip.Prefix `json:"peer,omitzero"`
	Broadcast netip.Addr   `json:"broadcast,omitzero"`
	// Label is empty if it is the name of the interface.
	Label string `json:"label,omitempty"`
	Scope uint8  `json:"scope,omitempty"`
	Flags int    `json:"flags,omitempty"`
	// Valid and Preferred end the lifetimes; 0 for no end.
	Valid     time.Duration `json:"valid,omitempty"`
	Preferred time.Duration `json:"preferred,omitempty"`
	// Plain is set if only the prefix is known. The kernel's defaults apply to the rest.
	Plain bool `json:"plain,omitempty"`
}

func (a Address) key() netip.Prefix { return a.Prefix }

// flagsOfConfiguration are the flags that come from the configuration of an address, and not from its state.
const flagsOfConfiguration = unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_MANAGETEMPADDR | unix.IFA_F_MCAUTOJOIN | unix.IFA_F_HOMEADDRESS

// Plain returns addresses of which only the prefix is known.
func Plain(prefixes []netip.Prefix) []Address {
	list := make([]Address, len(prefixes))
	for i, p := range prefixes {
		list[i] = Address{Prefix: p, Plain: true}
	}
	return list
}

// Prefixes returns the prefixes of addresses.
func Prefixes(list []Address) []netip.Prefix {
	var prefixes []netip.Prefix
	for _, a := range list {
		prefixes = append(prefixes, a.Prefix)
	}
	return prefixes
}

// Addresses returns the global addresses of an interface, IPv4 first, in the kernel's order. Link-local and temporary addresses belong to
// the interface and are not moved.
func Addresses(link netlink.Link) ([]Address, error) { return addresses(link, false) }

// addresses are Addresses, with link-local IPv6 addresses if local is set.
func addresses(link netlink.Link, local bool) ([]Address, error) {
	list, err := Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
	}
	var global []Address
	now := SinceBoot()
	for _, a := range list {
		prefix := ipfamily.PrefixOf(a.IPNet)
		temporary := prefix.Addr().Is6() && a.Flags&unix.IFA_F_TEMPORARY != 0 // for IPv4, the same bit means secondary
		moves := !prefix.Addr().IsLinkLocalUnicast() || local && prefix.Addr().Is6()
		if prefix.IsValid() && moves && !temporary {
			global = append(global, addressOf(a, link.Attrs().Name, now))
		}
	}
	slices.SortStableFunc(global, shortFirst)
	return global, nil
}

func addressOf(a netlink.Addr, name string, now time.Duration) Address {
	address := Address{
		Prefix: ipfamily.PrefixOf(a.IPNet), Peer: ipfamily.PrefixOf(a.Peer), Broadcast: AddrOf(a.Broadcast), Scope: uint8(a.Scope), //nolint:gosec // a byte in the kernel
		Flags: a.Flags & flagsOfConfiguration, Valid: end(a.ValidLft, now), Preferred: end(a.PreferedLft, now),
	}
	if a.Label != name {
		address.Label = a.Label
	}
	return address
}

// end returns when a lifetime in seconds ends; 0 for never.
func end(seconds int, now time.Duration) time.Duration {
	if seconds == forever {
		return 0
	}
	return max(1, now+time.Duration(seconds)*time.Second)
}

// expired reports whether the lifetime of the address has ended.
func (a Address) expired(now time.Duration) bool { return a.Valid != 0 && a.Valid <= now }

// rest returns the rest of a lifetime in seconds.
func rest(end, now time.Duration) int {
	if end == 0 {
		return forever
	}
	return max(0, int((end-now+time.Second/2)/time.Second))
}

// on returns the address for the kernel. It skips duplicate address detection: the address was in use on another interface.
func (a Address) on(now time.Duration) *netlink.Addr {
	made := &netlink.Addr{IPNet: netipx.PrefixIPNet(a.Prefix), Flags: a.Flags}
	if a.Prefix.Addr().Is6() {
		made.Flags |= unix.IFA_F_NODAD
	}
	if a.Plain {
		return made
	}
	made.Scope, made.Label = int(a.Scope), a.Label
	if a.Peer.IsValid() {
		made.Peer = netipx.PrefixIPNet(a.Peer)
	}
	made.Broadcast = net.IPv4zero // none
	if a.Broadcast.IsValid() {
		made.Broadcast = a.Broadcast.AsSlice()
	}
	if a.Valid != 0 || a.Preferred != 0 {
		made.ValidLft, made.PreferedLft = max(1, rest(a.Valid, now)), rest(a.Preferred, now)
	}
	return made
}

// ofBridge returns the address as the bridge gets it. The kernel adds the route to the network itself, creates no temporary addresses, and
// an IPv4 label would name the other interface.
func (a Address) ofBridge() Address {
	a.Label = ""
	a.Flags &^= unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_MANAGETEMPADDR
	return a
}

// Advertised reports whether an entry of a State comes from router advertisements or DHCPv6, and can end.
func (a Address) Advertised() bool { return a.Valid != 0 && a.Prefix.Addr().Is6() }

// Advertised is the same for routes. NetworkManager removes its routes at their end, which the kernel does not know.
func (r Route) Advertised() bool { return r.Expires != 0 || r.Protocol == unix.RTPROT_RA }

// Limited returns the addresses and routes of a state that can end.
func (s State) Limited() (names []string) {
	for _, a := range s.Addresses {
		if a.Valid != 0 {
			names = append(names, a.Prefix.String())
		}
	}
	for _, r := range s.Routes {
		if r.Advertised() {
			names = append(names, r.String())
		}
	}
	return names
}

// Advertised reports whether the state has entries that router advertisements or DHCPv6 renew.
func (s State) Advertised() bool {
	return slices.ContainsFunc(s.Addresses, Address.Advertised) || slices.ContainsFunc(s.Routes, Route.Advertised)
}

// Neighbour is an entry of the neighbour table.
type Neighbour struct {
	Address   netip.Addr `json:"address"`
	MAC       string     `json:"mac"`
	Permanent bool       `json:"permanent,omitempty"`
	Flags     int        `json:"flags,omitempty"`
}

// maxNeighbours bounds the entries that are moved; the others are resolved again.
const maxNeighbours = 256

// neighbours returns the resolved neighbours of an interface, permanent ones first.
func neighbours(link netlink.Link) ([]Neighbour, error) {
	list, err := Whole(func() ([]netlink.Neigh, error) { return netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list neighbours of %s: %w", link.Attrs().Name, err)
	}
	const resolved = netlink.NUD_REACHABLE | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE | netlink.NUD_PERMANENT
	var known []Neighbour
	for _, n := range list {
		address := AddrOf(n.IP)
		if n.State&resolved == 0 || len(n.HardwareAddr) == 0 || !address.IsValid() || address.IsMulticast() || n.Flags&netlink.NTF_PROXY != 0 {
			continue
		}
		known = append(known, Neighbour{
			Address: address, MAC: n.HardwareAddr.String(), Permanent: n.State&netlink.NUD_PERMANENT != 0, Flags: n.Flags & netlink.NTF_ROUTER,
		})
	}
	slices.SortStableFunc(known, func(a, b Neighbour) int {
		switch {
		case a.Permanent == b.Permanent:
			return 0
		case a.Permanent:
			return -1
		}
		return 1
	})
	return known[:min(len(known), maxNeighbours)], nil
}

// knownNow returns the neighbours of the bridge, which can be nil, and the permanent ones of the interface. Others of the interface can have changed their
// MAC addresses since its state was read. Those that cannot be listed are resolved when they are needed.
func (s State) knownNow(bridge netlink.Link) (known []Neighbour) {
	if bridge != nil {
		known, _ = neighbours(bridge)
	}
	for _, n := range s.Permanent() {
		if !slices.ContainsFunc(known, func(k Neighbour) bool { return k.Address == n.Address }) {
			known = append(known, n)
		}
	}
	return known
}

// Permanent returns the neighbours that a person or a program has added.
func (s State) Permanent() []Neighbour {
	return slices.DeleteFunc(slices.Clone(s.Neighbours), func(n Neighbour) bool { return !n.Permanent })
}

func (n Neighbour) on(link netlink.Link) (*netlink.Neigh, error) {
	mac, err := net.ParseMAC(n.MAC)
	if err != nil {
		return nil, fmt.Errorf("neighbour %s: %w", n.Address, err)
	}
	made := &netlink.Neigh{LinkIndex: link.Attrs().Index, IP: n.Address.AsSlice(), HardwareAddr: mac, State: netlink.NUD_STALE, Flags: n.Flags}
	if n.Permanent {
		made.State = netlink.NUD_PERMANENT
	}
	return made, nil
}

// State has the settings that an interface loses when it becomes a port of a bridge.
type State struct {
	Addresses  []Address   `json:"addresses,omitempty"`
	Routes     []Route     `json:"routes,omitempty"`
	Neighbours []Neighbour `json:"neighbours,omitempty"`
	MTU        int         `json:"mtu,omitempty"`
	// Promiscuous is the flag that programs set (IFF_PROMISC). ovs-vswitchd sets it in the userspace datapath, and leaves it when it is killed.
	Promiscuous bool `json:"promiscuous,omitempty"`
	// Settings are the values of sysctls, by their paths below /proc/sys/net, in which IF is the interface.
	Settings map[string]string `json:"settings,omitempty"`
	// OnTop are VLAN interfaces on the interface that have addresses. They stay where they are, and the node can need them.
	OnTop []string `json:"onTop,omitempty"`
}

// Carries names what a node can need of an interface: an address, or a route if it has none, such as a node whose address is on lo needs. It is empty
// if there is neither. Link-local addresses, and the routes that the kernel adds with addresses, are not in a State.
func (s State) Carries() string {
	switch {
	case len(s.Addresses) > 0:
		return "the address " + s.Addresses[0].Prefix.String()
	case len(s.Routes) > 0:
		return "the route " + s.Routes[0].String()
	}
	return ""
}

// Needed names what a node loses if a move fails: what the interface carries, or a VLAN interface on it. It is empty if there is nothing.
func (s State) Needed() string {
	if carries := s.Carries(); carries != "" || len(s.OnTop) == 0 {
		return carries
	}
	return "the VLAN interface " + s.OnTop[0]
}

// Read returns the state of an interface, without addresses that stay where they are: see Address.stays.
func Read(link netlink.Link) (State, error) {
	s, err := configuration(link)
	if err != nil {
		return s, err
	}
	taken, err := takenElsewhere(link.Attrs().Index)
	if err != nil {
		return s, err
	}
	s.Routes = distinct(s.Routes, taken)
	if s.Neighbours, err = neighbours(link); err != nil {
		return s, err
	}
	if s.OnTop, err = numbered(link); err != nil {
		return s, err
	}
	s.Settings, err = readSettings(link.Attrs().Name)
	return s, err
}

// OnLink reports whether an address is another host's in a network of the interface.
func (s State) OnLink(address netip.Addr) bool {
	on := false
	for _, a := range s.Addresses {
		if a.Prefix.Addr() == address {
			return false
		}
		on = on || a.Prefix.Contains(address)
	}
	return on
}

func promiscuous(link netlink.Link) bool { return link.Attrs().RawFlags&unix.IFF_PROMISC != 0 }

// configuration returns the state without neighbours. Addresses that are known to move do not stay.
func configuration(link netlink.Link, known ...Address) (State, error) {
	s := State{MTU: link.Attrs().MTU, Promiscuous: promiscuous(link)}
	mode, err := readSetting(addrGenMode, link.Attrs().Name)
	if err != nil {
		return s, err
	}
	if s.Addresses, err = addresses(link, mode == noAddresses); err != nil {
		return s, err
	}
	wide := wideFamilies(s.Addresses)
	s.Addresses = slices.DeleteFunc(s.Addresses, func(a Address) bool { return a.stays(wide) && !contains(known, a) })
	manual := map[netip.Prefix]bool{} // networks whose route is not the kernel's own, though it looks like that
	for _, a := range s.Addresses {
		network := a.Prefix.Masked()
		own, found := manual[network]
		manual[network] = a.Flags&unix.IFA_F_NOPREFIXROUTE != 0 && (own || !found)
	}
	s.Routes, err = routes(link, func(r netlink.Route) bool {
		return r.Protocol != unix.RTPROT_KERNEL || manual[ipfamily.PrefixOf(r.Dst)]
	})
	return s, err
}

// SinceBoot returns CLOCK_BOOTTIME, which all processes of the node share. It cannot be set.
func SinceBoot() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(fmt.Sprintf("read CLOCK_BOOTTIME: %v", err)) // exists since Linux 2.6.39
	}
	return time.Duration(now.Nano())
}

// AddrOf converts an address of package net; the result is invalid for nil.
func AddrOf(ip net.IP) netip.Addr {
	address, _ := netip.AddrFromSlice(ip)
	return address.Unmap()
}
