// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package topology is the lab's address plan: the machines, their names, and the addresses of their interfaces. It is pure: equal
// sizes give equal plans.
package topology

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Bounds of the plan. Each kind of node has a fixed range of host parts in each network, so the number of nodes is limited.
const (
	MaxControlPlanes = 9
	MaxWorkers       = 50
)

// Ports that the lab's own servers listen on.
const (
	APIServerPort = 6443
	OutsidePort   = 8080 // agnhost netexec on the outside hosts: /clientip, /echo, /hostname
	RegistryPort  = 5000 // of the registry that Registry names
)

// Service addresses of the cluster, one range per family.
var (
	serviceCIDRs = prefixes("10.96.0.0/16", "fd00:10:96::/112")
	apiServiceIP = addresses("10.96.0.1", "fd00:10:96::1")
	dnsServiceIP = addresses("10.96.0.10", "fd00:10:96::a")
)

// Network is one of the lab's layer 2 networks: a bridge, and a prefix per family.
type Network struct {
	Name     string // of the bridge
	Prefixes []netip.Prefix
}

// The lab's networks. The prefixes of Provider are for the router and for the subnets that tests put on it; nodes have no address
// there.
var (
	Management = Network{Name: "management", Prefixes: prefixes("172.30.0.0/24", "fd00:172:30::/64")}
	Tunnel     = Network{Name: "tunnel", Prefixes: prefixes("172.31.0.0/24", "fd00:172:31::/64")}
	Provider   = Network{Name: "provider", Prefixes: prefixes("172.28.0.0/24", "fd00:172:28::/64")}
	Outside    = Network{Name: "outside", Prefixes: prefixes("172.29.0.0/24", "fd00:172:29::/64")}
)

// VLAN is a network on the switch of Provider: the untagged packets, or those with a tag. The router has an address in it.
type VLAN struct {
	Network

	Tag int
}

// VLANs are the networks on the switch. It passes packets with other tags between the nodes.
var VLANs = []VLAN{
	{Network: Provider},
	{Tag: 30, Network: Network{Name: "vlan30", Prefixes: prefixes("172.28.30.0/24", "fd00:172:28:30::/64")}},
	{Tag: 40, Network: Network{Name: "vlan40", Prefixes: prefixes("172.28.40.0/24", "fd00:172:28:40::/64")}},
}

// ShortLease is the lifetime of the router's DHCP leases and advertisements in the network of untagged packets.
const ShortLease = 2 * time.Minute

// HostName is the name of the host in the VLAN that is no node.
func (v VLAN) HostName() string { return fmt.Sprintf("outside-%d", v.Tag) }

// Outside returns the addresses of that host.
func (v VLAN) Outside() []netip.Prefix { return v.At(outsidePlace) }

// Leases returns the first and the last IPv4 address that the router's DHCP server leases.
func (v VLAN) Leases() (first, last netip.Addr) {
	return v.At(leasePlaces[0])[0].Addr(), v.At(leasePlaces[1])[0].Addr()
}

// Host parts of addresses in a network's prefixes.
const (
	hostPlace         = 1
	routerPlace       = 254
	outsidePlace      = 10
	controlPlanePlace = 10 // plus the number of the node
	workerPlace       = 100
)

// leasePlaces are the first and the last host part of addresses that DHCP clients get.
var leasePlaces = [2]byte{20, 60}

// At returns the addresses with the given host part, one per family, each with its network's prefix length.
func (n Network) At(place byte) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(n.Prefixes))
	for _, p := range n.Prefixes {
		raw := p.Addr().AsSlice()
		raw[len(raw)-1] = place
		addr, _ := netip.AddrFromSlice(raw)
		out = append(out, netip.PrefixFrom(addr, p.Bits()))
	}
	return out
}

// Contains reports whether an address is in the network.
func (n Network) Contains(a netip.Addr) bool {
	return slices.ContainsFunc(n.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Host returns the addresses of the machine that the lab runs on.
func (n Network) Host() []netip.Prefix { return n.At(hostPlace) }

// Router returns the addresses of the outside world's router.
func (n Network) Router() []netip.Prefix { return n.At(routerPlace) }

// Registry returns address and port of the registry from which nodes pull images by HTTP. The lab runs no registry: tests serve one there.
func Registry() netip.AddrPort {
	return netip.AddrPortFrom(Management.Host()[0].Addr(), RegistryPort)
}

// OutsideHost returns the addresses of the host behind the router.
func OutsideHost() []netip.Prefix { return Outside.At(outsidePlace) }

// Node is one Kubernetes node.
type Node struct {
	Name         string
	ID           string // short enough to be part of an interface name: c1, w2
	ControlPlane bool
	Management   []netip.Prefix // eth0
	Tunnel       []netip.Prefix // eth1; eth2, on the provider network, has no address
}

// Addresses returns the addresses of eth0, which are the node's addresses in Kubernetes.
func (n Node) Addresses() []netip.Addr { return Addrs(n.Management) }

// Topology is the plan of one lab.
type Topology struct {
	ControlPlanes int
	Workers       int
	// KubeProxy runs kube-proxy on the nodes. Otherwise the network has to implement Services.
	KubeProxy bool
	// KernelDatapath says that the kernel has Open vSwitch's datapath, and that nodes are to use it.
	KernelDatapath bool
	// SingleNIC leaves nodes with one interface, for management, tunnels and the provider network.
	SingleNIC bool
	// IPv6First makes IPv6 the primary family of Services and nodes, as clusters with IPv6 pods only need it.
	IPv6First bool
}

// ServiceCIDRs returns the ranges of Services, the primary family first.
func (t Topology) ServiceCIDRs() []netip.Prefix { return inOrder(t, serviceCIDRs) }

// APIServiceIP returns the ClusterIPs of the API server, the primary family first.
func (t Topology) APIServiceIP() []netip.Addr { return inOrder(t, apiServiceIP) }

// DNSServiceIP returns the ClusterIPs of the cluster's DNS, the primary family first.
func (t Topology) DNSServiceIP() []netip.Addr { return inOrder(t, dnsServiceIP) }

// inOrder returns a list of one entry per family, IPv4 first, with the primary family first.
func inOrder[T any](t Topology, list []T) []T {
	list = slices.Clone(list)
	if t.IPv6First {
		slices.Reverse(list)
	}
	return list
}

// New returns the plan of a lab of the given size. The error names the bound that the size exceeds.
func New(controlPlanes, workers int) (Topology, error) {
	if controlPlanes < 1 || controlPlanes > MaxControlPlanes {
		return Topology{}, fmt.Errorf("%d control planes: the lab takes 1 to %d", controlPlanes, MaxControlPlanes)
	}
	if workers < 0 || workers > MaxWorkers {
		return Topology{}, fmt.Errorf("%d workers: the lab takes 0 to %d", workers, MaxWorkers)
	}
	return Topology{ControlPlanes: controlPlanes, Workers: workers}, nil
}

// Nodes returns the nodes, control planes first. The first one runs the Kubernetes control plane.
func (t Topology) Nodes() []Node {
	nodes := make([]Node, 0, t.ControlPlanes+t.Workers)
	for i := range t.ControlPlanes {
		nodes = append(nodes, t.node("control-plane", i+1, controlPlanePlace, true))
	}
	for i := range t.Workers {
		nodes = append(nodes, t.node("worker", i+1, workerPlace, false))
	}
	return nodes
}

// APIServer returns the addresses of the Kubernetes API server.
func (t Topology) APIServer() []netip.Addr { return t.Nodes()[0].Addresses() }

func (t Topology) node(kind string, number int, place byte, controlPlane bool) Node {
	at := place + byte(number)
	return Node{
		Name:         fmt.Sprintf("%s-%d", kind, number),
		ID:           fmt.Sprintf("%c%d", kind[0], number),
		ControlPlane: controlPlane,
		Management:   inOrder(t, Management.At(at)),
		Tunnel:       Tunnel.At(at),
	}
}

// Addrs drops the prefix lengths.
func Addrs(in []netip.Prefix) []netip.Addr {
	out := make([]netip.Addr, 0, len(in))
	for _, p := range in {
		out = append(out, p.Addr())
	}
	return out
}

func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(texts))
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func addresses(texts ...string) []netip.Addr {
	out := make([]netip.Addr, 0, len(texts))
	for _, s := range texts {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}
