// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver_test

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

	"github.com/kiln-net/kiln/agent/agenttest"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// grown are larger CIDRs of the default subnet, and grownGWs gateways that are reachable only with these CIDRs.
var (
	grown     = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00:10::/32")}
	grownGWs  = []netip.Addr{netip.MustParseAddr("10.200.0.1"), netip.MustParseAddr("fd00:10:99::1")}
	ownRoutes = []string{"192.0.2.0/24 via 10.16.0.77", "2001:db8::/64 via fd00:10:16::77"} // added by the pod itself
)

// move writes other CIDRs and gateways to a pod, as the controller does after a change of its subnet.
func move(n *agenttest.Node, pod *corev1.Pod, cidrs []netip.Prefix, gateways []netip.Addr) {
	n.Helper()
	base := pod.DeepCopy()
	for key, value := range (v1.PodNetwork{CIDRs: cidrs, Gateways: gateways}).Annotations() {
		pod.Annotations[key] = value
	}
	must.Succeed(n.TB, n.API.Patch(n.Context(), pod, client.MergeFrom(base)))
}

// numbers returns the global addresses of eth0 and lo, and the routes with a gateway.
func numbers(c *agenttest.Container) (addresses, routes []string) {
	c.Helper()
	c.Do(func() error {
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

func hasMoved(c *agenttest.Container, what string, cidrs []netip.Prefix, gateways []netip.Addr, more ...string) {
	c.Helper()
	var wantAddresses []string
	wantRoutes := slices.Clone(more)
	for i, address := range splitAddrs(c.Pod.Annotations[v1.AnnotationIPAddress.Key()]) {
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
	c.Eventually(what, func() bool {
		addresses, routes = numbers(c)
		_, ids := c.Port()
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
	n := agenttest.Serving(t)
	c, peer := n.Sandbox(n.Pod("follower", 30), agenttest.NewID()), n.Sandbox(n.Pod("peer", 31), agenttest.NewID())
	for _, c := range []*agenttest.Container{c, peer} {
		c.MustAdd()
		t.Cleanup(c.MustDel)
		c.Do(func() error {
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			return netlink.LinkSetUp(lo)
		})
	}
	c.Do(func() error {
		return errors.Join(agenttest.AddRoute("192.0.2.0/24", netip.MustParseAddr("10.16.0.77")), agenttest.AddRoute("2001:db8::/64", netip.MustParseAddr("fd00:10:16::77")))
	})
	var talks []func()
	for i := range agenttest.PodCIDRs {
		talks = append(talks, talk(c, peer, i))
	}

	move(n, c.Pod, grown, grownGWs)
	hasMoved(c, "the pod has followed", grown, grownGWs, ownRoutes...)
	move(n, c.Pod, agenttest.PodCIDRs, agenttest.PodGWs)
	hasMoved(c, "the pod is back", agenttest.PodCIDRs, agenttest.PodGWs, ownRoutes...)
	for _, talk := range talks {
		talk()
	}
	hasMoved(peer, "the other pod is as it was", agenttest.PodCIDRs, agenttest.PodGWs)

	n.Agent.Kill()
	move(n, c.Pod, grown, grownGWs)
	n.StartAgent()
	hasMoved(c, "the pod has followed what happened while the agent was away", grown, grownGWs, ownRoutes...)
	n.WaitReady() // pods are updated before the agent is ready
	if err := c.Check(); err != nil {
		t.Errorf("CHECK with the result of the ADD: %v", err)
	}
	name, _ := c.Port()
	n.VSCtl("remove", "Interface", name, "external_ids", "cidr", "--", "remove", "Interface", name, "external_ids", "gateway")
	n.Agent.Kill()
	n.StartAgent()
	hasMoved(c, "an agent that takes over from one that said nothing of it", grown, grownGWs, ownRoutes...)
	n.WaitReady()
}

// The annotations of a running pod change no address, and a network with other addresses changes nothing.
func TestRunningPodsKeepTheirAddresses(t *testing.T) {
	n := agenttest.Serving(t)
	c := n.Sandbox(n.Pod("keeper", 33), agenttest.NewID())
	c.MustAdd()
	t.Cleanup(c.MustDel)
	addresses, routes := numbers(c)
	last := n.Sandbox(n.Pod("last", 34), agenttest.NewID())
	last.MustAdd()
	t.Cleanup(last.MustDel)
	base := c.Pod.DeepCopy()
	forged := v1.PodNetwork{Addresses: splitAddrs("10.16.0.99,fd00:10:16::99"), CIDRs: grown, Gateways: grownGWs}
	maps.Copy(c.Pod.Annotations, forged.Annotations())
	must.Succeed(t, n.API.Patch(t.Context(), c.Pod, client.MergeFrom(base)))
	move(n, last.Pod, grown, grownGWs) // a permitted change, which arrives after the forged one
	hasMoved(last, "the agent has handled later changes", grown, grownGWs)
	if a, r := numbers(c); !slices.Equal(a, addresses) || !slices.Equal(r, routes) {
		t.Errorf("the pod has %v and %v, want %v and %v", a, r, addresses, routes)
	}
}

// If annotations change after an ADD has read them, and before it has added the port, the change must not be lost.
func TestAnADDFollowsWhatChangesMeanwhile(t *testing.T) {
	n := agenttest.Serving(t)
	c := n.Sandbox(n.Pod("meanwhile", 32), agenttest.NewID())
	must.Succeed(t, n.Database.Signal(syscall.SIGSTOP))
	added := make(chan error, 1)
	go func() { _, err := c.Add(); added <- err }()
	n.Eventually("the veth is there", func() (there bool) {
		c.Do(func() error { _, err := netlink.LinkByName("eth0"); there = err == nil; return nil })
		return there
	})
	before := followed(n)
	tunnels := n.Link("eth1")
	must.Succeed(t, netlink.LinkSetMTU(tunnels, agenttest.TunnelMTU-60))
	t.Cleanup(func() { must.Succeed(t, netlink.LinkSetMTU(tunnels, agenttest.TunnelMTU)) })
	move(n, c.Pod, grown, grownGWs)
	n.Eventually("the change has been looked at", func() bool { return followed(n) > before })
	must.Succeed(t, n.Database.Signal(syscall.SIGCONT))
	must.Succeed(t, <-added)
	t.Cleanup(c.MustDel)
	hasMoved(c, "the pod has the state of the last write", grown, grownGWs)
	n.Eventually("the pod has the MTU that tunnels leave now", func() bool {
		return mtus(c) == fmt.Sprint(agenttest.PodMTU-60, agenttest.PodMTU-60, agenttest.PodMTU-60)
	})
}

// followed returns the number of passes of the agent's pod controller.
func followed(n *agenttest.Node) (passes float64) {
	n.Helper()
	answer, err := http.Get("http://" + agenttest.HealthAddress + "/metrics")
	must.Succeed(n.TB, err)
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
func talk(c *agenttest.Container, peer *agenttest.Container, family int) func() {
	c.Helper()
	to := netip.AddrPortFrom(splitAddrs(peer.Pod.Annotations[v1.AnnotationIPAddress.Key()])[family], 7)
	var listener, connection net.Conn
	peer.Do(func() error {
		l, err := net.Listen("tcp", to.String())
		if err != nil {
			return err
		}
		c.Do(func() error { connection, err = net.Dial("tcp", to.String()); return err })
		listener, err = l.Accept()
		return errors.Join(err, l.Close())
	})
	return func() {
		c.Helper()
		defer listener.Close()
		defer connection.Close()
		go func() { _, _ = io.Copy(listener, listener) }()
		_, err := connection.Write([]byte("still there?"))
		must.Succeed(c.TB, err)
		_, err = io.ReadFull(connection, make([]byte, len("still there?")))
		must.Succeed(c.TB, err)
	}
}
