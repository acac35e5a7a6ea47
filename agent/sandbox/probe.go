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
	"golang.org/x/sys/unix"
)

const (
	// ProbePrefix begins the names of the node's ends of probe links. No other device's name does.
	ProbePrefix = "probe"
	// probeInside is the container's end.
	probeInside = "probe0"
)

// The ends of a probe link know each other's hardware addresses, so that nothing has to be asked for: who answers such questions is up to
// settings of the container's. The node's addresses are the same on every link; link-local ones are nobody else's there (RFC 3927, RFC 4291).
var (
	probeSources = map[bool]netip.Addr{true: netip.MustParseAddr("169.254.254.3"), false: netip.MustParseAddr("fe80::a9fe:fe03")}
	nodeMAC      = net.HardwareAddr{0x0a, 0x4b, 0xa9, 0xfe, 0xfe, 0x03}
	insideMAC    = net.HardwareAddr{0x0a, 0x4b, 0xa9, 0xfe, 0xfe, 0x04}
)

// Probe is a link between the node and a container whose addresses mean nothing, or something else, on the node: by it the kubelet reaches
// the container, from an address of the link alone.
type Probe struct {
	// NetNS is the path of the container's namespace, HostName the node's end.
	NetNS     string
	HostName  string
	Addresses []netip.Addr
}

// ProbeName is the name of the node's end of the probe link of a container's interface. It takes all of the 15 characters that the kernel
// allows.
func ProbeName(containerID, ifName string) string {
	sum := sha256.Sum256([]byte(containerID + "/" + ifName))
	return ProbePrefix + hex.EncodeToString(sum[:5])
}

// ProbeSource is the node's address on probe links, of the family of a pod's address.
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

// configureInside gives the container the way back. The link has no address there.
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
		if err := neighbour(kernel, link, source, nodeMAC); err != nil {
			return err
		}
		if err := kernel.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: single(source), Scope: netlink.SCOPE_LINK}); err != nil {
			return fmt.Errorf("add route to %s: %w", source, err)
		}
	}
	return nil
}

// configureNode gives the node's end its addresses, and the container's as neighbours.
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
	for _, v4 := range p.families() { // before the link is up: a route needs its source, and other ADDs add routes to links that are up
		source := probeSources[v4]
		if err := addAddress(kernel, link, netip.PrefixFrom(source, source.BitLen())); err != nil {
			return err
		}
	}
	if err := kernel.LinkSetUp(link); err != nil {
		return fmt.Errorf("bring up: %w", err)
	}
	for _, address := range p.Addresses {
		if err := neighbour(kernel, link, address, insideMAC); err != nil {
			return err
		}
	}
	return nil
}

// prepare sets what the kernel is to do with an end: answers may come from an address whose way, for the namespace, is another one; IPv6 is
// there when the container has it, and no router's advertisements are heard.
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

// families are those of the addresses; true is IPv4.
func (p Probe) families() []bool {
	var out []bool
	for _, address := range p.Addresses {
		out = append(out, address.Is4())
	}
	return out
}

func neighbour(kernel netlinksafe.Handle, link netlink.Link, address netip.Addr, mac net.HardwareAddr) error {
	err := kernel.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: address.AsSlice(), HardwareAddr: mac})
	if err != nil {
		return fmt.Errorf("set neighbour %s: %w", address, err)
	}
	return nil
}

func single(address netip.Addr) *net.IPNet {
	return ipNet(netip.PrefixFrom(address, address.BitLen()))
}
