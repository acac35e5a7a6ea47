// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kiln-net/kiln/api/v1"
)

// grown are larger CIDRs of the default subnet, and grownGWs gateways that are reachable only with these CIDRs.
var (
	grown     = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00:10::/32")}
	grownGWs  = []netip.Addr{netip.MustParseAddr("10.200.0.1"), netip.MustParseAddr("fd00:10:99::1")}
	ownRoutes = []string{"192.0.2.0/24 via 10.16.0.77", "2001:db8::/64 via fd00:10:16::77"} // added by the pod itself
)

// move writes other CIDRs and gateways to a pod, as the controller does after a change of its subnet.
func (n *node) move(pod *corev1.Pod, cidrs []netip.Prefix, gateways []netip.Addr) {
	n.Helper()
	base := pod.DeepCopy()
	for key, value := range (v1.PodNetwork{CIDRs: cidrs, Gateways: gateways}).Annotations() {
		pod.Annotations[key] = value
	}
	must(n.TB, n.api.Patch(n.Context(), pod, client.MergeFrom(base)))
}

// numbers returns the global addresses of eth0 and lo, and the routes with a gateway.
func (c *container) numbers() (addresses, routes []string) {
	c.Helper()
	c.do(func() error {
		for _, name := range []string{"eth0", "lo"} {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			list, err := netlinksafe.AddrList(link, netlink.FAMILY_ALL)
			if err != nil {
				return err
			}
			for _, a := range list {
				if a.IP.IsGlobalUnicast() {
					addresses = append(addresses, name+" "+a.IPNet.String())
				}
			}
		}
		list, err := netlinksafe.RouteList(nil, netlink.FAMILY_ALL)
		for _, r := range list {
			if r.Gw != nil {
				routes = append(routes, r.Dst.String()+" via "+r.Gw.String())
			}
		}
		return err
	})
	slices.Sort(addresses)
	slices.Sort(routes)
	return addresses, routes
}

func (c *container) hasMoved(what string, cidrs []netip.Prefix, gateways []netip.Addr, more ...string) {
	c.Helper()
	var wantAddresses []string
	wantRoutes := slices.Clone(more)
	for i, address := range splitAddrs(c.pod.Annotations[v1.AnnotationIPAddress.Key()]) {
		wantAddresses = append(wantAddresses, fmt.Sprintf("eth0 %s/%d", address, cidrs[i].Bits()))
		wantRoutes = append(wantRoutes, map[bool]string{false: "0.0.0.0/0", true: "::/0"}[address.Is6()]+" via "+gateways[i].String())
	}
	slices.Sort(wantAddresses)
	slices.Sort(wantRoutes)
	var addresses, routes []string
	c.Cleanup(func() {
		if c.Failed() {
			c.Logf("%s: %v, want %v; %v, want %v", what, addresses, wantAddresses, routes, wantRoutes)
		}
	})
	c.eventually(what, func() bool {
		addresses, routes = c.numbers()
		_, ids := c.port()
		return slices.Equal(addresses, wantAddresses) && slices.Equal(routes, wantRoutes) &&
			ids["cidr"] == fmt.Sprintf("%s,%s", cidrs[0], cidrs[1]) && ids["gateway"] == fmt.Sprintf("%s,%s", gateways[0], gateways[1])
	})
}

func splitAddrs(list string) (out []netip.Addr) {
	for part := range strings.SplitSeq(list, ",") {
		out = append(out, netip.MustParseAddr(part))
	}
	return out
}

func TestRunningPodsFollowTheirSubnet(t *testing.T) {
	n := serving(t)
	c, peer := n.sandbox(n.pod("follower", 30), newID()), n.sandbox(n.pod("peer", 31), newID())
	for _, c := range []*container{c, peer} {
		c.mustAdd()
		t.Cleanup(c.mustDel)
		c.do(func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			return netlink.LinkSetUp(lo)
		})
	}
	c.do(func() error {
		return errors.Join(addRoute("192.0.2.0/24", netip.MustParseAddr("10.16.0.77")), addRoute("2001:db8::/64", netip.MustParseAddr("fd00:10:16::77")))
	})
	var talks []func()
	for i := range podCIDRs {
		talks = append(talks, c.talk(peer, i))
	}

	n.move(c.pod, grown, grownGWs)
	c.hasMoved("the pod has followed", grown, grownGWs, ownRoutes...)
	n.move(c.pod, podCIDRs, podGWs)
	c.hasMoved("the pod is back", podCIDRs, podGWs, ownRoutes...)
	for _, talk := range talks {
		talk()
	}
	peer.hasMoved("the other pod is as it was", podCIDRs, podGWs)

	n.agent.Kill()
	n.move(c.pod, grown, grownGWs)
	n.startAgent()
	c.hasMoved("the pod has followed what happened while the agent was away", grown, grownGWs, ownRoutes...)
	n.waitReady() // pods are updated before the agent is ready
	if err := c.check(); err != nil {
		t.Errorf("CHECK with the result of the ADD: %v", err)
	}
	name, _ := c.port()
	n.vsctl("remove", "Interface", name, "external_ids", "cidr", "--", "remove", "Interface", name, "external_ids", "gateway")
	n.agent.Kill()
	n.startAgent()
	c.hasMoved("an agent that takes over from one that said nothing of it", grown, grownGWs, ownRoutes...)
	n.waitReady()
}

// The annotations of a running pod change no address, and a network with other addresses changes nothing.
func TestRunningPodsKeepTheirAddresses(t *testing.T) {
	n := serving(t)
	c := n.sandbox(n.pod("keeper", 33), newID())
	c.mustAdd()
	t.Cleanup(c.mustDel)
	addresses, routes := c.numbers()
	last := n.sandbox(n.pod("last", 34), newID())
	last.mustAdd()
	t.Cleanup(last.mustDel)
	base := c.pod.DeepCopy()
	forged := v1.PodNetwork{Addresses: splitAddrs("10.16.0.99,fd00:10:16::99"), CIDRs: grown, Gateways: grownGWs}
	maps.Copy(c.pod.Annotations, forged.Annotations())
	must(t, n.api.Patch(t.Context(), c.pod, client.MergeFrom(base)))
	n.move(last.pod, grown, grownGWs) // a permitted change, which arrives after the forged one
	last.hasMoved("the agent has handled later changes", grown, grownGWs)
	if a, r := c.numbers(); !slices.Equal(a, addresses) || !slices.Equal(r, routes) {
		t.Errorf("the pod has %v and %v, want %v and %v", a, r, addresses, routes)
	}
}

// If annotations change after an ADD has read them, and before it has added the port, the change must not be lost.
func TestAnADDFollowsWhatChangesMeanwhile(t *testing.T) {
	n := serving(t)
	c := n.sandbox(n.pod("meanwhile", 32), newID())
	must(t, n.server.Signal(syscall.SIGSTOP))
	added := make(chan error, 1)
	go func() { _, err := c.add(); added <- err }()
	n.eventually("the veth is there", func() (there bool) {
		c.do(func() error { _, err := netlink.LinkByName("eth0"); there = err == nil; return nil })
		return there
	})
	before := n.followed()
	tunnels := n.link("eth1")
	must(t, netlink.LinkSetMTU(tunnels, tunnelMTU-60))
	t.Cleanup(func() { must(t, netlink.LinkSetMTU(tunnels, tunnelMTU)) })
	n.move(c.pod, grown, grownGWs)
	n.eventually("the change has been looked at", func() bool { return n.followed() > before })
	must(t, n.server.Signal(syscall.SIGCONT))
	must(t, <-added)
	t.Cleanup(c.mustDel)
	c.hasMoved("the pod has the state of the last write", grown, grownGWs)
	n.eventually("the pod has the MTU that tunnels leave now", func() bool { return c.mtus() == fmt.Sprint(podMTU-60, podMTU-60, podMTU-60) })
}

// followed returns the number of passes of the agent's pod controller.
func (n *node) followed() (passes float64) {
	n.Helper()
	answer, err := http.Get("http://" + healthPort + "/metrics")
	must(n.TB, err)
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		var value float64
		if _, err := fmt.Sscanf(lines.Text(), `controller_runtime_reconcile_total{controller="pod",result="success"} %g`, &value); err == nil {
			passes += value
		}
	}
	return passes
}

// talk opens a connection to another container, in a family, and returns a function that checks that the connection still works.
func (c *container) talk(peer *container, family int) func() {
	c.Helper()
	to := netip.AddrPortFrom(splitAddrs(peer.pod.Annotations[v1.AnnotationIPAddress.Key()])[family], 7)
	var listener, connection net.Conn
	peer.do(func() error {
		l, err := net.Listen("tcp", to.String())
		if err != nil {
			return err
		}
		c.do(func() error { connection, err = net.Dial("tcp", to.String()); return err })
		listener, err = l.Accept()
		return errors.Join(err, l.Close())
	})
	return func() {
		c.Helper()
		defer listener.Close()
		defer connection.Close()
		go func() { _, _ = io.Copy(listener, listener) }()
		_, err := connection.Write([]byte("still there?"))
		must(c.TB, err)
		_, err = io.ReadFull(connection, make([]byte, len("still there?")))
		must(c.TB, err)
	}
}
