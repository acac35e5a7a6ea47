// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	lab "github.com/kiln-net/kiln/hack/lab/cluster"
)

const outside = lab.OutsideHost

// Names of references.
const (
	linuxBridge = "reference: Linux bridge"
	ovsBridge   = "reference: bridge of Open vSwitch, NORMAL"
	geneve      = "reference: Geneve, no OVN"
)

// references makes the references and returns their paths. What an earlier run left is replaced.
func (b *bench) references(ctx context.Context) ([]path, error) {
	var all []path
	for i, r := range []struct {
		name, prefix, up, attach string
	}{
		{linuxBridge, "kbl", "if ip link show kbl-br >/dev/null 2>&1; then ip link del kbl-br; fi; " +
			"ip link add kbl-br type bridge mcast_snooping 0; ip link set kbl-br up", "ip link set kbl-%s master kbl-br"},
		{ovsBridge, "kbo", "ovs-vsctl --timeout=20 --if-exists del-br kbo-br; " +
			"ovs-vsctl --timeout=20 add-br kbo-br -- set bridge kbo-br datapath_type=" + b.datapathType(),
			"ovs-vsctl --timeout=20 add-port kbo-br kbo-%s"},
	} {
		addresses, err := b.pair(ctx, byte(i), r.prefix, r.up, r.attach)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		for _, a := range addresses {
			all = append(all, path{name: r.name, client: b.within(b.near, r.prefix+"-a"), to: netip.AddrPortFrom(a, port)})
		}
	}
	if !b.lab.KernelDatapath() {
		return all, nil // hosts without the kernel's datapath have no Geneve either
	}
	tunnels, err := b.tunnel(ctx)
	return append(all, tunnels...), err
}

func (b *bench) datapathType() string {
	if b.lab.KernelDatapath() {
		return "system"
	}
	return "netdev"
}

// referenceMTU is the MTU of pods in the lab, so that tunnels carry packets of one size.
const referenceMTU = 1400

// addressesOf returns the addresses of one end of a reference, with prefix lengths. Network separates references.
func addressesOf(network, end byte) []netip.Prefix {
	return []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, network, end}), 24),
		netip.MustParsePrefix(fmt.Sprintf("2001:db8:18:%x::%x/64", network, end)),
	}
}

// pair makes two namespaces whose interfaces are ports of a bridge, and a server in the second one. It returns the server's addresses.
func (b *bench) pair(ctx context.Context, network byte, prefix, up, attach string) (addresses []netip.Addr, err error) {
	script := []string{fmt.Sprintf("for n in a b; do ip netns del %[1]s-$n 2>/dev/null; ip link del %[1]s-$n 2>/dev/null; done; set -e", prefix), up}
	for end, name := range []string{"a", "b"} {
		ns := prefix + "-" + name
		script = append(script, "ip netns add "+ns,
			fmt.Sprintf("ip link add %[1]s mtu %[2]d type veth peer name eth0 mtu %[2]d netns %[1]s", ns, referenceMTU),
			fmt.Sprintf(attach, name), "ip link set "+ns+" up", "ip -n "+ns+" link set eth0 up", "ip -n "+ns+" link set lo up")
		if !b.lab.KernelDatapath() { // as with pods: this datapath completes no checksums
			script = append(script, "ip netns exec "+ns+" ethtool -K eth0 tx off >/dev/null")
		}
		for _, a := range addressesOf(network, byte(end)+1) {
			script = append(script, fmt.Sprintf("ip -n %s address add %s dev eth0%s", ns, a, nodad(a)))
			if end == 1 {
				addresses = append(addresses, a.Addr())
			}
		}
	}
	if _, err := b.lab.Output(ctx, b.near, "sh", "-c", strings.Join(script, "\n")); err != nil {
		return nil, err
	}
	return addresses, serve(ctx, b.within(b.near, prefix+"-b"))
}

func nodad(p netip.Prefix) string {
	if p.Addr().Is6() {
		return " nodad"
	}
	return ""
}

// tunnel makes a Geneve tunnel between the workers, with a port of its own.
func (b *bench) tunnel(ctx context.Context) ([]path, error) {
	const network = 9
	tunnels := map[string]netip.Addr{}
	for _, n := range b.lab.Nodes() {
		tunnels[n.Name] = n.Tunnel[0].Addr()
	}
	var paths []path
	for end, name := range []string{b.near, b.far} {
		peer := map[string]string{b.near: b.far, b.far: b.near}[name]
		script := []string{
			"ip link del kbg 2>/dev/null; set -e",
			fmt.Sprintf("ip link add kbg mtu %d type geneve id 77 remote %s dstport 6082", referenceMTU, tunnels[peer]), "ip link set kbg up",
		}
		for _, a := range addressesOf(network, byte(end)+1) {
			script = append(script, fmt.Sprintf("ip address add %s dev kbg%s", a, nodad(a)))
			if end == 1 {
				paths = append(paths, path{name: geneve, client: b.on(b.near), to: netip.AddrPortFrom(a.Addr(), port)})
			}
		}
		if _, err := b.lab.Output(ctx, name, "sh", "-c", strings.Join(script, "\n")); err != nil {
			return nil, fmt.Errorf("%s: %w", geneve, err)
		}
	}
	return paths, serve(ctx, b.on(b.far))
}
