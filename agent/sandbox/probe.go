// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"
)

const (
	// ProbePrefix begins the names of the node's ends of probe links. No other device's name has it.
	ProbePrefix = "probe"
	// probeInside is the name of the container's end.
	probeInside = "probe0"
)

// Both ends of a probe link have static neighbour entries, because the container's settings may prevent ARP and neighbour discovery
// replies. The node's addresses are the same on every link; they are link-local, so they are not in use elsewhere on the link (RFC 3927,
// RFC 4291).
var (
	probeSources = map[bool]netip.Addr{true: netip.MustParseAddr("169.254.254.3"), false: netip.MustParseAddr("fe80::a9fe:fe03")}
	nodeMAC      = net.HardwareAddr{0x0a, 0x4b, 0xa9, 0xfe, 0xfe, 0x03}
	insideMAC    = net.HardwareAddr{0x0a, 0x4b, 0xa9, 0xfe, 0xfe, 0x04}
)

// Probe is a link between the node and a container whose addresses are unknown or used otherwise on the node. The kubelet reaches the
// container through it, always from the source address ProbeSource.
type Probe struct {
	// NetNS is the path of the container's namespace, HostName the name of the node's end.
	NetNS     string
	HostName  string
	Addresses []netip.Addr
}

// ProbeName returns the name of the node's end of the probe link of a container's interface. It has 15 characters, the kernel's limit.
func ProbeName(containerID, ifName string) string {
	sum := sha256.Sum256([]byte(containerID + "/" + ifName))
	return ProbePrefix + hex.EncodeToString(sum[:5])
}

// ProbeSource returns the node's address on probe links, of the family of a pod's address.
func ProbeSource(address netip.Addr) netip.Addr { return probeSources[address.Is4()] }

// Create makes the link and replaces the link of an earlier attempt. The kernel deletes the link together with the container's namespace.
// The node has no route to the container yet: see package probes.
func (p Probe) Create() error {
	if err := Remove(p.HostName); err != nil {
		return err
	}
	namespace, err := open(p.NetNS)
	if err != nil {
		return err
	}
	defer namespace.Close()
	if err := p.add(namespace); err != nil {
		return fmt.Errorf("make probe link %s of %s: %w", p.HostName, p.NetNS, err)
	}
	if err := namespace.Do(func(ns.NetNS) error { return p.configureInside() }); err != nil {
		return fmt.Errorf("configure %s in %s: %w", probeInside, p.NetNS, err)
	}
	if err := p.configureNode(); err != nil {
		return fmt.Errorf("configure probe link %s: %w", p.HostName, err)
	}
	return nil
}

func (p Probe) add(namespace ns.NetNS) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = p.HostName, nodeMAC
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerHardwareAddr, veth.PeerNamespace = probeInside, insideMAC, netlink.NsFd(namespace.Fd())
	making.Lock()
	defer making.Unlock()
	return netlink.LinkAdd(veth)
}

// configureInside gives the container a route and a neighbour entry for replies to the node. Its end of the link has no address.
func (p Probe) configureInside() error {
	kernel, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer kernel.Close()
	link, err := kernel.LinkByName(probeInside)
	if err != nil {
		return fmt.Errorf("find it: %w", err)
	}
	if err := p.prepare(probeInside); err != nil {
		return err
	}
	if err := kernel.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up: %w", err)
	}
	for _, v4 := range p.families() {
		source := probeSources[v4]
		if err := setNeighbour(kernel, link, source, nodeMAC); err != nil {
			return err
		}
		if err := kernel.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: single(source), Scope: netlink.SCOPE_LINK}); err != nil {
			return fmt.Errorf("add route to %s: %w", source, err)
		}
	}
	return nil
}

// configureNode adds the node's addresses, and neighbour entries for the container's addresses, to the node's end.
func (p Probe) configureNode() error {
	kernel, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer kernel.Close()
	link, err := kernel.LinkByName(p.HostName)
	if err != nil {
		return fmt.Errorf("find it: %w", err)
	}
	if err := p.prepare(p.HostName); err != nil {
		return err
	}
	for _, v4 := range p.families() { // before the link is up: a route needs its source, and concurrent ADDs add routes to links that are up
		source := probeSources[v4]
		if err := addAddress(kernel, link, netip.PrefixFrom(source, source.BitLen())); err != nil {
			return err
		}
	}
	if err := kernel.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up: %w", err)
	}
	for _, address := range p.Addresses {
		if err := setNeighbour(kernel, link, address, insideMAC); err != nil {
			return err
		}
	}
	return nil
}

// prepare sets the kernel parameters of one end. Loose rp_filter accepts packets from an address that the namespace routes through
// another device. IPv6 is enabled if the container has an IPv6 address, and router advertisements are ignored.
func (p Probe) prepare(name string) error {
	settings := [][2]string{{"net/ipv4/conf/" + name + "/rp_filter", "2"}}
	for _, v4 := range p.families() {
		if !v4 {
			settings = append(settings, [][2]string{{"net/ipv6/conf/" + name + "/disable_ipv6", "0"}, {"net/ipv6/conf/" + name + "/accept_ra", "0"}}...)
		}
	}
	for _, s := range settings {
		if err := writeSysctl(s[0], s[1]); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// families returns the family of each address; true is IPv4.
func (p Probe) families() []bool {
	var out []bool
	for _, address := range p.Addresses {
		out = append(out, address.Is4())
	}
	return out
}

func setNeighbour(kernel netlinksafe.Handle, link netlink.Link, address netip.Addr, mac net.HardwareAddr) error {
	err := kernel.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: address.AsSlice(), HardwareAddr: mac})
	if err != nil {
		return fmt.Errorf("set neighbour %s: %w", address, err)
	}
	return nil
}

func single(address netip.Addr) *net.IPNet {
	return netipx.PrefixIPNet(netip.PrefixFrom(address, address.BitLen()))
}
