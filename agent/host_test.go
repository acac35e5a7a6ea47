// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/host"
	"github.com/kiln-net/kiln/agent/sandbox"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/nodetest"
	"github.com/kiln-net/kiln/internal/version"
)

// conflist returns the content that the runtime reads; nil if the agent has not installed it.
func (n *node) conflist() []byte {
	content, _ := os.ReadFile(filepath.Join(n.options.CNIConfDir, host.ConfigName))
	return content
}

func (n *node) networkUnavailable() *corev1.NodeCondition {
	n.Helper()
	object := &corev1.Node{}
	must(n.TB, n.api.Get(n.Context(), client.ObjectKey{Name: nodeName}, object))
	for i := range object.Status.Conditions {
		if object.Status.Conditions[i].Type == corev1.NodeNetworkUnavailable {
			return &object.Status.Conditions[i]
		}
	}
	return nil
}

func TestNodeBecomesReadyInOrder(t *testing.T) {
	n := newNode(t)
	n.register()
	n.idle.Store(true)
	n.server.Kill()
	n.startAgent()
	n.eventually("the agent lives without Open vSwitch", func() bool { return n.health("/healthz") == http.StatusOK })
	n.startDatabase()
	n.eventually("the message names the missing prerequisite", func() bool { return n.health("/readyz") == http.StatusInternalServerError })
	if n.health(version.Path) != http.StatusOK {
		t.Error("no version in the answer")
	}
	if n.conflist() != nil {
		t.Fatal("the conflist is installed before the node has an address")
	}
	n.allocate()
	n.eventually("ovn0 has its addresses", func() bool {
		return hasAddress(host.JoinInterface, "100.64.0.2/16") && hasAddress(host.JoinInterface, "fd00:100:64::2/112")
	})
	time.Sleep(300 * time.Millisecond)
	if n.conflist() != nil || n.health("/readyz") == http.StatusOK || n.networkUnavailable() != nil {
		t.Fatal("the node serves before ovn-controller has installed the flows of ovn0")
	}
	n.idle.Store(false)
	n.touch(host.JoinInterface)
	n.waitReady()
	must(t, keepsNeighbours(host.JoinInterface))
	n.eventually("the conflist is installed", func() bool { return n.conflist() != nil })
	for _, name := range []string{"kube-ovn", "portmap"} {
		want, err := os.ReadFile(filepath.Join(plugins, name))
		must(t, err)
		have, err := os.ReadFile(filepath.Join(n.options.CNIBinDir, name))
		must(t, err)
		if string(have) != string(want) {
			t.Errorf("plugin %s differs", name)
		}
	}
	n.eventually("the node's condition is set", func() bool {
		c := n.networkUnavailable()
		return c != nil && c.Status == corev1.ConditionFalse && c.Reason == host.ReasonServing
	})
}

// touch updates a port in the database, so that the simulated ovn-controller processes it again.
func (n *node) touch(name string) {
	n.Helper()
	n.vsctl("set", "Interface", name, "external_ids:touched=yes")
}

func TestNodeRoutesAndRestores(t *testing.T) {
	n := serving(t)
	wantRoutes(n, true, "10.16.0.0/16", "fd00:10:16::/112")

	subnet := &v1.Subnet{}
	subnet.Name, subnet.Spec.CIDRBlock = "more", "10.17.0.0/16"
	n.create(subnet)
	other := &v1.Subnet{}
	other.Name, other.Spec.CIDRBlock, other.Spec.Vpc = "custom", "10.18.0.0/16", "custom"
	n.create(other)
	wantRoutes(n, true, "10.17.0.0/16")
	wantRoutes(n, false, "10.18.0.0/16")

	t.Run("a route and an address that someone deletes come back", func(t *testing.T) {
		n := n.in(t)
		must(t, netlink.RouteDel(route(n, "10.17.0.0/16")))
		wantRoutes(n, true, "10.17.0.0/16")
		link, err := netlink.LinkByName(host.JoinInterface)
		must(t, err)
		address, err := netlink.ParseAddr("100.64.0.2/16")
		must(t, err)
		must(t, netlink.AddrDel(link, address))
		n.eventually("the address is back", func() bool { return hasAddress(host.JoinInterface, "100.64.0.2/16") })
		wantRoutes(n, true, "10.16.0.0/16", "10.17.0.0/16", "fd00:10:16::/112")
	})
	t.Run("routes of others stay", func(t *testing.T) {
		n := n.in(t)
		must(t, addRoute("10.19.0.0/16", outside[0].Addr()))
		t.Cleanup(func() { _ = netlink.RouteDel(&netlink.Route{Dst: cidr("10.19.0.0/16")}) })
		must(t, n.api.Delete(t.Context(), subnet))
		wantRoutes(n, false, "10.17.0.0/16")
		if found := route(n, "10.19.0.0/16"); found == nil {
			t.Error("the agent deleted a route that is not its own")
		}
	})
	t.Run("addresses added for Services and to the node are followed", func(t *testing.T) {
		n := n.in(t)
		const cidr = "10.201.0.0/16"
		more := &networkingv1.ServiceCIDR{}
		more.Name, more.Spec.CIDRs = "more", []string{cidr}
		must(t, n.api.Create(t.Context(), more))
		n.eventually("the CIDR is in the table", func() bool { return strings.Contains(ruleset(t), cidr) })
		n.rests()
		more.Finalizers = nil // no controller removes them here
		must(t, errors.Join(n.api.Update(t.Context(), more), n.api.Delete(t.Context(), more)))
		n.eventually("the CIDR is no longer in the table", func() bool { return !strings.Contains(ruleset(t), cidr) })

		const address = "192.0.2.77"
		object := &corev1.Node{}
		must(t, n.api.Get(t.Context(), client.ObjectKey{Name: nodeName}, object))
		object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
		must(t, n.api.Status().Update(t.Context(), object))
		n.eventually("the node's address is in the table", func() bool { return strings.Contains(ruleset(t), address) })
	})
	t.Run("everything comes back after ovs-vswitchd restarts", func(t *testing.T) {
		n := n.in(t)
		n.vswitchd.Kill()
		must(t, sandbox.Remove(host.JoinInterface)) // as a regular shutdown does
		n.eventually("readiness notices", func() bool { return n.health("/readyz") != http.StatusOK })
		n.startVSwitchd()
		n.eventually("ovn0 is back with its addresses", func() bool { return hasAddress(host.JoinInterface, "100.64.0.2/16") })
		wantRoutes(n, true, "10.16.0.0/16", "fd00:10:16::/112")
		n.waitReady()
	})
	t.Run("the agent continues after ovsdb-server restarts", func(t *testing.T) {
		n := n.in(t)
		n.server.Kill()
		n.eventually("STATUS notices", func() bool { return n.health("/readyz") != http.StatusOK })
		n.startDatabase()
		n.waitReady()
		n.eventually("the test is connected again", n.ovs.Connected)
		c := n.sandbox(n.pod("after-restart", 200), newID())
		c.mustAdd()
		c.mustDel()
	})
}

// rests waits until the host reconciler has had no pass for two seconds. The kernel reports the end of changes that late, such as the end
// of duplicate address detection. A pending pass would hide a missing event.
func (n *node) rests() {
	n.Helper()
	last, since := 0.0, time.Now()
	n.eventually("the node's network rests", func() bool {
		passes := 0.0
		for _, m := range n.metric("controller_runtime_reconcile_total").GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "controller" && l.GetValue() == "host" {
					passes += m.GetCounter().GetValue()
				}
			}
		}
		if passes != last {
			last, since = passes, time.Now()
		}
		return time.Since(since) > 2*time.Second
	})
}

func TestARouteOfSomeoneElseKeepsOneSubnetOnlyFromTheNode(t *testing.T) {
	n := serving(t)
	must(t, addRoute("10.19.0.0/16", outside[0].Addr()))
	foreign := &netlink.Route{Dst: cidr("10.19.0.0/16"), Gw: outside[0].Addr().AsSlice()}
	t.Cleanup(func() { _ = netlink.RouteDel(foreign) })
	for name, block := range map[string]string{"taken": "10.19.0.0/16", "later": "10.21.0.0/16"} {
		subnet := &v1.Subnet{}
		subnet.Name, subnet.Spec.CIDRBlock = name, block
		n.create(subnet)
	}
	wantRoutes(n, true, "10.21.0.0/16")
	n.eventually("the rest of the node follows", func() bool {
		return strings.Contains(ruleset(t), "10.19.0.0/16") && strings.Contains(ruleset(t), "10.21.0.0/16")
	})
	n.eventually("the node's condition names the conflict", func() bool {
		c := n.networkUnavailable()
		return c != nil && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "a route of someone else to 10.19.0.0/16")
	})
	if n.health("/readyz") != http.StatusOK {
		t.Error("no pod can be attached because of one subnet")
	}
	must(t, netlink.RouteDel(foreign))
	wantRoutes(n, true, "10.19.0.0/16")
	n.eventually("the conflict is resolved", func() bool { return !strings.Contains(n.networkUnavailable().Message, "10.19.0.0/16") })
}

func TestSourceNATAndPaths(t *testing.T) {
	n := serving(t)
	router := n.router()
	far := n.farHost()
	pod := n.sandbox(n.pod("talker", 300), newID())
	pod.mustAdd()
	t.Cleanup(pod.mustDel)
	other := n.sandbox(n.pod("listener", 301), newID())
	other.mustAdd()
	t.Cleanup(other.mustDel)
	_ = router
	for i, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) {
			podIP, otherIP := addressesOf(300)[i], addressesOf(301)[i]
			large := strings.Repeat("k", 200_000)
			if from := exchange(t, pod.ns, other.ns, otherIP, large); from != podIP {
				t.Errorf("the other pod sees %s, want the pod's %s", from, podIP)
			}
			if from := exchange(t, nil, pod.ns, podIP, large); from != nodeIPs[i].Addr() {
				t.Errorf("the pod sees %s, want the node's %s", from, nodeIPs[i].Addr())
			}
			if from := exchange(t, pod.ns, nil, nodeIPs[i].Addr(), large); from != podIP {
				t.Errorf("the node sees %s, want the pod's %s", from, podIP)
			}
			if from := exchange(t, pod.ns, far, outside[i].Addr(), large); from != nodeIPs[i].Addr() {
				t.Errorf("the host outside sees %s, want the node's %s", from, nodeIPs[i].Addr())
			}
		})
	}
	t.Run("a flushed table comes back with the next change", func(t *testing.T) {
		n := n.in(t)
		before := ruleset(t)
		nodetest.NFT(t, "delete table inet "+host.NATTable)
		subnet := &v1.Subnet{}
		subnet.Name, subnet.Spec.CIDRBlock = "trigger", "10.20.0.0/16"
		n.create(subnet)
		n.eventually("the table is there again", func() bool { return strings.Contains(ruleset(t), "10.20.0.0/16") })
		must(t, n.api.Delete(t.Context(), subnet))
		n.eventually("the table is as before", func() bool { return ruleset(t) == before })
	})
}

func ruleset(t *testing.T) string {
	t.Helper()
	out, _ := nodetest.TryNFT("list table inet " + host.NATTable) // it does not exist for a moment
	return out
}

// router plays the logical router: a namespace on the bridge with the addresses of all gateways.
func (n *node) router() ns.NetNS {
	n.Helper()
	var addresses []netip.Prefix
	for i := range podGWs {
		addresses = append(addresses, netip.PrefixFrom(podGWs[i], podCIDRs[i].Bits()), netip.PrefixFrom(joinGWs[i], joinCIDRs[i].Bits()))
	}
	return n.forwarder("router_h", net.HardwareAddr{2, 0, 0, 0, 0, 1}, addresses...)
}

// forwarder is a host on the integration bridge that forwards packets. Its default route is this node.
func (n *node) forwarder(port string, mac net.HardwareAddr, addresses ...netip.Prefix) ns.NetNS {
	n.Helper()
	namespace, err := testutils.NewNS()
	must(n.TB, err)
	device := sandbox.Interface{NetNS: namespace.Path(), Name: "lr", HostName: port, MAC: mac, MTU: podMTU, ComputeChecksums: true, Addresses: addresses}
	device.Routes = []sandbox.Route{
		{To: netip.MustParsePrefix("0.0.0.0/0"), Via: joinIPs[0]}, {To: netip.MustParsePrefix("::/0"), Via: joinIPs[1]},
	}
	must(n.TB, device.Create())
	must(n.TB, device.Configure())
	must(n.TB, namespace.Do(func(ns.NetNS) error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644),
			os.WriteFile("/proc/sys/net/ipv4/conf/all/send_redirects", []byte("0"), 0o644),
			os.WriteFile("/proc/sys/net/ipv4/conf/lr/send_redirects", []byte("0"), 0o644),
		)
	}))
	n.vsctl("add-port", "br-int", device.HostName)
	n.Cleanup(func() {
		_ = sandbox.Remove(device.HostName)
		_ = errors.Join(namespace.Close(), testutils.UnmountNS(namespace))
	})
	return namespace
}

// farHost returns the host on the other end of eth0. It has no route to pods.
func (n *node) farHost() ns.NetNS {
	n.Helper()
	return n.beyond("eth0-out", func(link netlink.Link) error { return addAddresses(link, outside...) })
}

// beyond moves an interface to a new namespace until the test ends, and sets it up there.
func (n *node) beyond(name string, setUp func(link netlink.Link) error) ns.NetNS {
	n.Helper()
	namespace, err := testutils.NewNS()
	must(n.TB, err)
	link, err := netlink.LinkByName(name)
	must(n.TB, err)
	home, err := ns.GetCurrentNS()
	must(n.TB, err)
	must(n.TB, netlink.LinkSetNsFd(link, int(namespace.Fd())))
	must(n.TB, namespace.Do(func(ns.NetNS) error {
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

// exchange sends text over TCP from one namespace (nil is the node's) to another and returns the source address at the receiver.
func exchange(t testing.TB, from, to ns.NetNS, address netip.Addr, text string) netip.Addr {
	t.Helper()
	return exchangeAt(t, from, to, netip.AddrPortFrom(address, 0), text)
}

// exchangeAt is like exchange with a port of the server; 0 for any.
func exchangeAt(t testing.TB, from, to ns.NetNS, server netip.AddrPort, text string) netip.Addr {
	t.Helper()
	in := func(namespace ns.NetNS, f func() error) error {
		if namespace == nil {
			return f()
		}
		return namespace.Do(func(ns.NetNS) error { return f() })
	}
	var listener net.Listener
	must(t, in(to, func() (err error) {
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
	must(t, in(from, func() error {
		connection, err := net.DialTimeout("tcp", listener.Addr().String(), patience)
		if err != nil {
			return err
		}
		defer connection.Close()
		must(t, connection.SetDeadline(time.Now().Add(patience)))
		_, err = connection.Write([]byte(text))
		return err
	}))
	result := <-received
	must(t, result.err)
	return result.from
}

func TestAgentRestarts(t *testing.T) {
	n := serving(t)
	kept := n.sandbox(n.pod("kept", 400), newID())
	kept.mustAdd()
	index := linkIndex(t, host.JoinInterface)

	t.Run("without the agent, STATUS and ADD say so and DEL succeeds", func(t *testing.T) {
		c := n.sandbox(n.pod("deleted-meanwhile", 401), newID())
		c.mustAdd()
		n.agent.Kill()
		if err := c.cni.GetStatusNetworkList(t.Context(), c.list); errorCode(t, err) != 50 {
			t.Errorf("STATUS: %v", err)
		}
		late := n.sandbox(n.pod("late", 402), newID())
		if _, err := late.add(); errorCode(t, err) != 11 {
			t.Errorf("ADD: %v", err)
		}
		c.mustDel()
		c.vanish()
		must(t, n.api.Delete(t.Context(), c.pod, client.GracePeriodSeconds(0)))
		c.port() // the port still exists

		must(t, os.Remove(filepath.Join(n.options.CNIConfDir, host.ConfigName)))
		n.startAgent()
		n.waitReady()
		n.eventually("the port of the ended container is removed", func() bool {
			for _, iface := range n.interfaces() {
				if iface.ExternalIDs["container_id"] == c.id {
					return false
				}
			}
			return true
		})
		n.eventually("the conflist is back", func() bool { return n.conflist() != nil })
		must(t, c.cni.GetStatusNetworkList(t.Context(), c.list))
		late.mustAdd()
		late.mustDel()
		must(t, kept.check())
		if linkIndex(t, host.JoinInterface) != index {
			t.Error("ovn0 was made again")
		}
	})
	t.Run("a stopped agent leaves everything as it is", func(t *testing.T) {
		must(t, n.agent.Signal(syscall.SIGTERM))
		if err := n.agent.Wait(); err != nil {
			t.Errorf("the agent did not stop well: %v", err)
		}
		if n.conflist() == nil || !hasAddress(host.JoinInterface, "100.64.0.2/16") || route(n, "10.16.0.0/16") == nil {
			t.Error("the agent took the node's network down")
		}
		name, _ := kept.port()
		if there, err := sandbox.HasLink(name); !there || err != nil {
			t.Errorf("the pod's device is missing (%v)", err)
		}
	})
}

func hasAddress(name, prefix string) bool {
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

func cidr(s string) *net.IPNet {
	_, network, _ := net.ParseCIDR(s)
	return network
}

// route returns the route to a CIDR; nil if there is none.
func route(n *node, to string) *netlink.Route {
	n.Helper()
	list, err := netlinksafe.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Dst: cidr(to)}, netlink.RT_FILTER_DST)
	must(n.TB, err)
	if len(list) == 0 {
		return nil
	}
	return &list[0]
}

func wantRoutes(n *node, present bool, cidrs ...string) {
	n.Helper()
	for _, to := range cidrs {
		n.eventually(fmt.Sprintf("route to %s is there: %v", to, present), func() bool {
			r := route(n, to)
			if r == nil || !present {
				return (r != nil) == present
			}
			i := 0
			if strings.Contains(to, ":") {
				i = 1
			}
			return r.Gw.String() == joinGWs[i].String() && r.Src.String() == nodeIPs[i].Addr().String()
		})
	}
}
