// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/agent/sandbox"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/neighbour"
)

// addForwarded adds the addresses of EgressAddresses on this node. OVN translates packets of pods to them, and packets to them go back to OVN. own are the node's addresses: no route may
// take them away from it, nor the claims of the plan.
func (p *Plan) addForwarded(node string, own []netip.Addr, list []v1.EgressAddress) {
	for i := range list {
		status := &list[i].Status
		p.Gateway = p.Gateway || has(node, status)
		addresses := ipfamily.ValidAddrs(status.Addresses...)
		if status.Node != node {
			p.Elsewhere = append(p.Elsewhere, addresses...)
			continue
		}
		for _, address := range addresses {
			if address.IsGlobalUnicast() && !slices.Contains(own, address) && !slices.Contains(p.Claims, address) && !slices.Contains(p.Forwarded, address) {
				p.Forwarded = append(p.Forwarded, address)
				p.Routes = append(p.Routes, Route{To: netip.PrefixFrom(address, address.BitLen())})
			}
		}
	}
	slices.SortFunc(p.Forwarded, netip.Addr.Compare)
	p.Elsewhere = slices.DeleteFunc(p.Elsewhere, func(a netip.Addr) bool { return slices.Contains(p.Forwarded, a) })
}

// has reports whether a node has the addresses of an EgressAddress, or gets them if the other node fails.
func has(node string, status *v1.EgressAddressStatus) bool {
	return status.Node == node || status.Standby == node
}

// forwardedMetric distinguishes a note from that of a claim of the same address, which has the kernel's default metric.
const forwardedMetric = 2048

// ownAddresses returns the addresses of the node's interfaces without claims.
func ownAddresses() ([]netip.Addr, error) {
	list, err := netlinksafe.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var own []netip.Addr
	for _, a := range list {
		if !isClaim(a) {
			own = append(own, ipfamily.PrefixOf(a.IPNet).Addr())
		}
	}
	return own, nil
}

// proxy is an address for which the node answers ARP or neighbour requests on an interface, as a router that forwards packets to it.
type proxy struct {
	address netip.Addr
	link    int
}

// setForwarded makes the node answer ARP and neighbour requests for addresses that it does not have, on the interface whose network contains each. It announces an address that
// is new there, so that other hosts send to this node at once. An address in no network of the node must be routed to the node by other means. Stale entries of earlier
// calls are removed, and entries for addresses that are elsewhere: an agent that does not know EgressAddresses has removed notes, but not entries. Other entries of other programs stay.
// It is idempotent, and returns the indexes of the interfaces.
func setForwarded(want, elsewhere []netip.Addr) (links []int, err error) {
	noted, err := notes(unix.RTN_UNREACHABLE)
	if err != nil || len(want) == 0 && len(noted) == 0 && len(elsewhere) == 0 {
		return nil, err
	}
	list, err := netlinksafe.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	have, err := proxies()
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, address := range want {
		link, err := answer(address, list, have)
		if err != nil {
			failed = append(failed, fmt.Errorf("answer for egress address %s: %w", address, err))
		} else if link != 0 {
			links = append(links, link)
		}
	}
	for address, note := range noted { // entries of other programs have no note
		if !slices.Contains(want, address) {
			failed = append(failed, forget(address, note, have))
		}
	}
	for _, address := range elsewhere {
		failed = append(failed, silence(address, 0, have))
	}
	return links, errors.Join(failed...)
}

// forget stops answering for an address, and then deletes its note: an entry without a note would never be deleted.
func forget(address netip.Addr, note netlink.Route, have map[proxy]bool) error {
	if err := silence(address, 0, have); err != nil {
		return err
	}
	if err := netlink.RouteDel(&note); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("forget egress address %s: %w", address, err)
	}
	return nil
}

// silence stops answering for an address on all interfaces but one.
func silence(address netip.Addr, but int, have map[proxy]bool) error {
	for p := range have {
		if p.address != address || p.link == but {
			continue
		}
		if err := netlink.NeighDel(p.entry()); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("stop answering for egress address %s: %w", address, err)
		}
	}
	return nil
}

// proxies lists the addresses for which the node answers as a router, also addresses that other programs have added.
func proxies() (map[proxy]bool, error) {
	found := map[proxy]bool{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := kernel.Whole(func() ([]netlink.Neigh, error) { return netlink.NeighProxyList(0, family) })
		if err != nil {
			return nil, fmt.Errorf("list neighbour proxies: %w", err)
		}
		for _, n := range list {
			if address, ok := netipx.FromStdIP(n.IP); ok {
				found[proxy{address, n.LinkIndex}] = true
			}
		}
	}
	return found, nil
}

func (p proxy) entry() *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: p.link, Flags: netlink.NTF_PROXY, IP: p.address.AsSlice(), Family: familyOf(p.address)}
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// answer makes the node answer for an address on the interface whose network contains it, and on no other one. It returns the index of the interface; 0 for none.
func answer(address netip.Addr, list []netlink.Addr, have map[proxy]bool) (link int, err error) {
	device, err := networkOf(address, list)
	if err != nil {
		return 0, err
	}
	note := &netlink.Route{
		Dst: netipx.PrefixIPNet(netip.PrefixFrom(address, address.BitLen())), Table: kernel.ClaimTable, Protocol: routeProtocol, Type: unix.RTN_UNREACHABLE, Priority: forwardedMetric,
	}
	if err := netlink.RouteReplace(note); err != nil { // before the entry: one without a record would never be removed
		return 0, fmt.Errorf("note it: %w", err)
	}
	if device == nil {
		return 0, silence(address, 0, have)
	}
	if err := silence(address, device.Attrs().Index, have); err != nil {
		return 0, err
	}
	attrs := device.Attrs()
	if err := answerAtOnce(address, attrs.Name); err != nil {
		return 0, err
	}
	if p := (proxy{address, attrs.Index}); !have[p] {
		// First: if it fails, the next pass announces the address again. Packets to it are forwarded already.
		if len(attrs.HardwareAddr) == 6 {
			if err := sandbox.AnnounceAt(device, neighbour.Host{Address: address, MAC: attrs.HardwareAddr}); err != nil {
				return 0, fmt.Errorf("announce it: %w", err)
			}
		}
		if err := netlink.NeighAdd(p.entry()); err != nil && !errors.Is(err, unix.EEXIST) {
			return 0, fmt.Errorf("add the entry on %s: %w", attrs.Name, err)
		}
	}
	return attrs.Index, nil
}

// networkOf returns the interface whose network contains an address; nil if there is none.
func networkOf(address netip.Addr, list []netlink.Addr) (netlink.Link, error) {
	for _, a := range list {
		p := ipfamily.PrefixOf(a.IPNet)
		if p.IsSingleIP() || !p.Contains(address) {
			continue
		}
		device, err := netlink.LinkByIndex(a.LinkIndex)
		if err != nil {
			return nil, fmt.Errorf("find the interface: %w", err)
		}
		if device.Attrs().Name != JoinInterface {
			return device, nil
		}
	}
	return nil, nil
}

// answerAtOnce sets the parameters by which the kernel answers for addresses that it forwards: for IPv6 it does not by default, and it delays the answers of both families by up to 0.8 s.
func answerAtOnce(address netip.Addr, link string) error {
	if address.Is4() {
		return sysctl("net/ipv4/neigh/"+link+"/proxy_delay", "0")
	}
	return errors.Join(sysctl("net/ipv6/conf/"+link+"/proxy_ndp", "1"), sysctl("net/ipv6/neigh/"+link+"/proxy_delay", "0"))
}
