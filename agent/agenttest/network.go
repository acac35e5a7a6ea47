// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/agent/sandbox"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// connectNode creates the interfaces of the node's namespace: eth0 with the node's addresses and a default route, eth1 for tunnels. The
// other ends are eth0-out and eth1-out.
func connectNode() error {
	for name, addresses := range map[string][]netip.Prefix{"eth0": NodeIPs, "eth1": {netip.MustParsePrefix("192.168.77.1/24")}} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = name, TunnelMTU
		veth := netlink.NewVeth(attrs)
		veth.PeerName = name + "-out"
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		peer, err := netlink.LinkByName(veth.PeerName)
		if err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkSetUp(veth), netlink.LinkSetUp(peer), AddAddresses(veth, addresses...)); err != nil {
			return err
		}
	}
	return errors.Join(AddRoute("0.0.0.0/0", Outside[0].Addr()), AddRoute("::/0", Outside[1].Addr()))
}

// RestoreIPv6 restores the addresses and routes that the node loses when IPv6 is disabled.
func RestoreIPv6() error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	return errors.Join(AddAddresses(link, NodeIPs[1]), AddRoute("::/0", Outside[1].Addr()))
}

// Router plays the logical router: a namespace on the bridge with the addresses of all gateways.
func (n *Node) Router() ns.NetNS {
	n.Helper()
	var addresses []netip.Prefix
	for i := range PodGWs {
		addresses = append(addresses, netip.PrefixFrom(PodGWs[i], PodCIDRs[i].Bits()), netip.PrefixFrom(JoinGWs[i], JoinCIDRs[i].Bits()))
	}
	return n.Forwarder("router_h", net.HardwareAddr{2, 0, 0, 0, 0, 1}, addresses...)
}

// Forwarder is a host on the integration bridge that forwards packets. Its default route is this node.
func (n *Node) Forwarder(port string, mac net.HardwareAddr, addresses ...netip.Prefix) ns.NetNS {
	n.Helper()
	namespace, err := testutils.NewNS()
	must.Succeed(n.TB, err)
	device := sandbox.Interface{NetNS: namespace.Path(), Name: "lr", HostName: port, MAC: mac, MTU: PodMTU, ComputeChecksums: true, Addresses: addresses}
	device.Routes = []sandbox.Route{
		{To: netip.MustParsePrefix("0.0.0.0/0"), Via: JoinIPs[0]}, {To: netip.MustParsePrefix("::/0"), Via: JoinIPs[1]},
	}
	must.Succeed(n.TB, device.Create())
	must.Succeed(n.TB, device.Configure())
	must.Succeed(n.TB, namespace.Do(func(ns.NetNS) error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644),
			os.WriteFile("/proc/sys/net/ipv4/conf/all/send_redirects", []byte("0"), 0o644),
			os.WriteFile("/proc/sys/net/ipv4/conf/lr/send_redirects", []byte("0"), 0o644),
		)
	}))
	n.VSCtl("add-port", "br-int", device.HostName)
	n.Cleanup(func() {
		_ = sandbox.Remove(device.HostName)
		_ = errors.Join(namespace.Close(), testutils.UnmountNS(namespace))
	})
	return namespace
}

// FarHost returns the host on the other end of eth0. It has no route to pods.
func (n *Node) FarHost() ns.NetNS {
	n.Helper()
	return n.Beyond("eth0-out", func(link netlink.Link) error { return AddAddresses(link, Outside...) })
}

// Beyond moves an interface to a new namespace until the test ends, and sets it up there.
func (n *Node) Beyond(name string, setUp func(link netlink.Link) error) ns.NetNS {
	n.Helper()
	namespace, err := testutils.NewNS()
	must.Succeed(n.TB, err)
	link, err := netlink.LinkByName(name)
	must.Succeed(n.TB, err)
	home, err := ns.GetCurrentNS()
	must.Succeed(n.TB, err)
	must.Succeed(n.TB, netlink.LinkSetNsFd(link, int(namespace.Fd())))
	must.Succeed(n.TB, namespace.Do(func(ns.NetNS) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(link), setUp(link))
	}))
	n.Cleanup(func() {
		_ = namespace.Do(func(ns.NetNS) error { return netlink.LinkSetNsFd(link, int(home.Fd())) })
		_ = netlink.LinkSetUp(link)
		_ = errors.Join(namespace.Close(), testutils.UnmountNS(namespace))
	})
	return namespace
}

// Exchange sends text over TCP from one namespace (nil is the node's) to another and returns the source address at the receiver.
func Exchange(t testing.TB, from, to ns.NetNS, address netip.Addr, text string) netip.Addr {
	t.Helper()
	return ExchangeAt(t, from, to, netip.AddrPortFrom(address, 0), text)
}

// ExchangeAt is like Exchange with a port of the server; 0 for any.
func ExchangeAt(t testing.TB, from, to ns.NetNS, server netip.AddrPort, text string) netip.Addr {
	t.Helper()
	in := func(namespace ns.NetNS, f func() error) error {
		if namespace == nil {
			return f()
		}
		return namespace.Do(func(ns.NetNS) error { return f() })
	}
	var listener net.Listener
	must.Succeed(t, in(to, func() (err error) {
		listener, err = net.Listen("tcp", server.String())
		return err
	}))
	defer listener.Close()
	type seen struct {
		from netip.Addr
		err  error
	}
	received := make(chan seen, 1)
	go func() {
		connection, err := listener.Accept()
		if err != nil {
			received <- seen{err: err}
			return
		}
		defer connection.Close()
		content, err := io.ReadAll(connection)
		if err == nil && string(content) != text {
			err = fmt.Errorf("received %d bytes of %d", len(content), len(text))
		}
		received <- seen{connection.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(), err}
	}()
	must.Succeed(t, in(from, func() error {
		connection, err := net.DialTimeout("tcp", listener.Addr().String(), Patience)
		if err != nil {
			return err
		}
		defer connection.Close()
		must.Succeed(t, connection.SetDeadline(time.Now().Add(Patience)))
		_, err = connection.Write([]byte(text))
		return err
	}))
	result := <-received
	must.Succeed(t, result.err)
	return result.from
}

// HasAddress reports whether an interface of the node is up and has an address with this prefix length.
func HasAddress(name, prefix string) bool {
	link, err := netlink.LinkByName(name)
	if err != nil || link.Attrs().Flags&net.FlagUp == 0 {
		return false
	}
	list, err := netlinksafe.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return false
	}
	for _, a := range list {
		if a.IPNet.String() == prefix {
			return true
		}
	}
	return false
}

// CIDR parses a prefix; it returns nil for other text.
func CIDR(s string) *net.IPNet {
	_, network, _ := net.ParseCIDR(s)
	return network
}

// RouteTo returns the route to a CIDR; nil if there is none.
func RouteTo(n *Node, to string) *netlink.Route {
	n.Helper()
	list, err := netlinksafe.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Dst: CIDR(to)}, netlink.RT_FILTER_DST)
	must.Succeed(n.TB, err)
	if len(list) == 0 {
		return nil
	}
	return &list[0]
}

// WantRoutes waits until the node has routes to the CIDRs through the join subnet, or, unless present, none to them.
func WantRoutes(n *Node, present bool, cidrs ...string) {
	n.Helper()
	for _, to := range cidrs {
		n.Eventually(fmt.Sprintf("route to %s is there: %v", to, present), func() bool {
			r := RouteTo(n, to)
			if r == nil || !present {
				return (r != nil) == present
			}
			i := 0
			if strings.Contains(to, ":") {
				i = 1
			}
			return r.Gw.String() == JoinGWs[i].String() && r.Src.String() == NodeIPs[i].Addr().String()
		})
	}
}

// Link returns an interface of the node by name.
func (n *Node) Link(name string) netlink.Link {
	n.Helper()
	link, err := netlink.LinkByName(name)
	must.Succeed(n.TB, err)
	return link
}

// LinkIndex returns the index of an interface of the node by name.
func LinkIndex(t testing.TB, name string) int {
	t.Helper()
	link, err := netlink.LinkByName(name)
	must.Succeed(t, err)
	return link.Attrs().Index
}

// KeepsNeighbours returns an error unless an interface of the current network namespace keeps neighbours that do not answer.
func KeepsNeighbours(name string) error {
	for _, key := range sandbox.NeighbourProbeKeys(name) {
		content, err := os.ReadFile(filepath.Join("/proc/sys", key))
		if err != nil {
			return err
		}
		if got := strings.TrimSpace(string(content)); got != sandbox.NeighbourProbes {
			return fmt.Errorf("%s is %s, want %s", key, got, sandbox.NeighbourProbes)
		}
	}
	return nil
}

// AddAddresses adds addresses to an interface of the current network namespace. They can be used at once.
func AddAddresses(link netlink.Link, prefixes ...netip.Prefix) error {
	for _, p := range prefixes {
		address := &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
		if p.Addr().Is6() {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, address); err != nil {
			return fmt.Errorf("add %s to %s: %w", p, link.Attrs().Name, err)
		}
	}
	return nil
}

// AddRoute adds a route to the current network namespace.
func AddRoute(to string, via netip.Addr) error {
	_, network, err := net.ParseCIDR(to)
	if err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{Dst: network, Gw: via.AsSlice()}); err != nil {
		return fmt.Errorf("add route to %s via %s: %w", to, via, err)
	}
	return nil
}

// DeleteRules deletes the routing rules of a priority, of both families, as another program of the node might.
func DeleteRules(t testing.TB, priority int) {
	t.Helper()
	deleted := 0
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, err := netlinksafe.RuleList(family)
		must.Succeed(t, err)
		for i := range rules {
			if rules[i].Priority == priority {
				rules[i].Family = family
				must.Succeed(t, netlink.RuleDel(&rules[i]))
				deleted++
			}
		}
	}
	if deleted == 0 {
		t.Fatalf("there is no rule of priority %d", priority)
	}
}
