// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fabric is the lab's physical network. One namespace has a bridge per layer 2 network, one is the router of the outside
// world, the host behind it and the hosts of VLANs have one each, and so has each node. The bridge of the provider network is a switch with
// VLANs: Open vSwitch in userspace, because the kernel may have no VLANs. The machine that the lab runs on gets a single interface, HostLink,
// through which it reaches the nodes' management addresses and the Kubernetes API; its other network settings do not change.
//
// Removing the namespaces removes every interface, address and route in them.
package fabric

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kiln-net/kiln/hack/lab/topology"
)

// HostLink is the lab's interface in the network namespace in which the lab was started.
const HostLink = "kiln-lab"

// Namespaces of the lab besides the node namespaces.
const (
	Bridges     = "fabric"
	Router      = "router"
	OutsideHost = "outside"
)

// Ensure creates the missing parts of the bridges, the router, the outside host and the host's link, and leaves existing parts
// unchanged. Without the kernel's Open vSwitch datapath, packets on cables have complete checksums.
func Ensure(top topology.Topology) error {
	namespaces := []string{Bridges, Router, OutsideHost}
	for _, v := range topology.VLANs {
		namespaces = append(namespaces, v.HostName())
	}
	for _, ns := range namespaces {
		if err := ensureNetns(ns); err != nil {
			return err
		}
	}
	for _, n := range []topology.Network{topology.Management, topology.Tunnel, topology.Outside} {
		if err := ensureBridge(n.Name); err != nil {
			return err
		}
	}
	for _, c := range worldCables() {
		if err := c.ensure(top.KernelDatapath); err != nil {
			return err
		}
	}
	return nil
}

// Connect gives a node a new namespace with its interfaces and default routes through the outside world's router.
func Connect(n topology.Node, top topology.Topology) error {
	if err := removeNetns(n.Name); err != nil {
		return err
	}
	if err := ensureNetns(n.Name); err != nil {
		return err
	}
	for _, c := range nodeCables(n, top.SingleNIC) {
		if err := c.ensure(top.KernelDatapath); err != nil {
			return err
		}
		if c.onSwitch() { // it may run already
			if err := inNetns(Bridges, func() error { return keepUp(c.port) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// cable is a veth pair: one end is a port of a bridge, the other end an interface in some namespace.
type cable struct {
	bridge    string
	settings  []string // of the port of the switch, columns of Open vSwitch's table Port; by default it passes packets of all VLANs, tagged
	master    string   // of the interface at the other end, a bridge there
	port      string   // name of the bridge's port
	netns     string   // "" for the host's
	link      string   // name of the interface there
	addresses []netip.Prefix
	gateways  []netip.Addr // of default routes
}

func worldCables() []cable {
	router := func(n topology.Network) cable {
		return cable{bridge: n.Name, port: "router." + n.Name[:1], netns: Router, link: n.Name, addresses: n.Router()}
	}
	cables := []cable{
		{bridge: topology.Management.Name, port: "host", link: HostLink, addresses: topology.Management.Host()},
		router(topology.Management),
		router(topology.Outside),
		{
			bridge: topology.Outside.Name, port: "outside.eth0", netns: OutsideHost, link: "eth0",
			addresses: topology.OutsideHost(), gateways: topology.Addrs(topology.Outside.Router()),
		},
	}
	for _, v := range topology.VLANs {
		access := []string{"vlan_mode=access", fmt.Sprintf("tag=%d", v.Tag)}
		cables = append(cables, cable{
			bridge: topology.Provider.Name, settings: access, port: "router." + v.Name, netns: Router, link: v.Name, addresses: v.Router(),
		}, cable{
			bridge: topology.Provider.Name, settings: access, port: v.HostName(), netns: v.HostName(), link: "eth0",
			addresses: v.Outside(), gateways: topology.Addrs(v.Router()),
		})
	}
	return append(cables, trunk())
}

// trunk connects the switch with the bridge of the management network, which passes tagged packets unchanged: nodes reach the switch's
// tagged VLANs also by eth0.
func trunk() cable {
	var tags []string
	for _, v := range topology.VLANs {
		if v.Tag != 0 {
			tags = append(tags, strconv.Itoa(v.Tag))
		}
	}
	return cable{
		bridge: topology.Provider.Name, settings: []string{"trunks=" + strings.Join(tags, ",")}, port: "trunk", netns: Bridges, link: "switch",
		master: topology.Management.Name,
	}
}

// SwitchPorts returns the ports of the switch in a lab, each with its settings in Open vSwitch's table Port.
func SwitchPorts(top topology.Topology) map[string][]string {
	cables, ports := worldCables(), map[string][]string{}
	for _, n := range top.Nodes() {
		cables = append(cables, nodeCables(n, top.SingleNIC)...)
	}
	for _, c := range cables {
		if c.onSwitch() {
			ports[c.port] = c.settings
		}
	}
	return ports
}

func nodeCables(n topology.Node, singleNIC bool) []cable {
	cables := []cable{
		{
			bridge: topology.Management.Name, port: n.ID + ".eth0", netns: n.Name, link: "eth0",
			addresses: n.Management, gateways: topology.Addrs(topology.Management.Router()),
		},
		{bridge: topology.Tunnel.Name, port: n.ID + ".eth1", netns: n.Name, link: "eth1", addresses: n.Tunnel},
		{bridge: topology.Provider.Name, port: n.ID + ".eth2", netns: n.Name, link: "eth2"},
	}
	if singleNIC {
		return cables[:1]
	}
	return cables
}

// Remove removes every namespace of the lab and the host's link. It is idempotent. The processes in the namespaces must have ended
// before.
func Remove() error {
	names, err := Netnses()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := removeNetns(name); err != nil {
			return err
		}
	}
	return removeHostLink()
}

// Leftovers lists the lab's namespaces and links that exist in the kernel.
func Leftovers() ([]string, error) {
	names, err := Netnses()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, name := range names {
		out = append(out, fmt.Sprintf("namespace %s", NetnsPath(name)))
	}
	present, err := hostLinkExists()
	if err != nil {
		return nil, err
	}
	if present {
		out = append(out, "link "+HostLink)
	}
	return out, nil
}
