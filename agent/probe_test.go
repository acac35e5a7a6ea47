// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/kiln-net/kiln/agent/sandbox"
)

// probeRoutes are the node's routes to pods of custom VPCs, and links of probes the devices.
func probeRoutes() string {
	out, _ := exec.Command("sh", "-c", "for f in -4 -6; do ip $f route show table 1802267760 2>/dev/null; done").CombinedOutput()
	return string(out)
}

func probeLinks(t *testing.T) (names []string) {
	t.Helper()
	links, err := netlinksafe.LinkList()
	must(t, err)
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, sandbox.ProbePrefix) {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

// tenant adds a pod of a custom VPC.
func (n *node) tenant(name string, number int) *container {
	n.Helper()
	pod := n.createPod(name)
	n.annotateIn(pod, number, "blue")
	c := n.sandbox(pod, newID())
	c.mustAdd()
	n.Cleanup(c.mustDel)
	return c
}

func TestTheNodeProbesPodsOfCustomVPCs(t *testing.T) {
	n := serving(t)
	plain := n.sandbox(n.pod("plain", 400), newID())
	plain.mustAdd()
	t.Cleanup(plain.mustDel)
	if names := probeLinks(t); len(names) != 0 {
		t.Errorf("a pod of the default VPC has %v", names)
	}
	tenant := n.tenant("tenant", 300)
	sources := []netip.Addr{netip.MustParseAddr("169.254.254.3"), netip.MustParseAddr("fe80::a9fe:fe03")}
	for i, podIP := range addressesOf(300) {
		if from := exchange(t, nil, tenant.ns, podIP, strings.Repeat("k", 200_000)); from.WithZone("") != sources[i] {
			t.Errorf("the pod sees %s, want %s", from, sources[i])
		}
		if _, err := net.DialTimeout("tcp", netip.AddrPortFrom(podIP, 1).String(), patience); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a port of %s that nobody listens on: %v", podIP, err)
		}
		if out, err := exec.Command("ping", "-c", "1", "-W", "30", podIP.String()).CombinedOutput(); err != nil {
			t.Errorf("ping %s: %v: %s", podIP, err, out)
		}
		n.cannotReachTheNode(tenant, sources[i])
	}

	t.Run("the older of two pods with one address keeps it, and the other has it after that", func(t *testing.T) {
		n := n.in(t)
		pod := n.createPod("second")
		n.annotateIn(pod, 300, "red")
		second := n.sandbox(pod, newID())
		second.mustAdd()
		t.Cleanup(second.mustDel)
		for _, podIP := range addressesOf(300) {
			exchange(t, nil, tenant.ns, podIP, "to the older one")
		}
		tenant.mustDel()
		for _, podIP := range addressesOf(300) {
			exchange(t, nil, second.ns, podIP, "to the one that is left")
		}
	})
	if names := probeLinks(t); len(names) != 0 || probeRoutes() != "" {
		t.Errorf("after DEL there are %v and routes %q", names, probeRoutes())
	}
}

// cannotReachTheNode checks that the link passes answers only.
func (n *node) cannotReachTheNode(c *container, address netip.Addr) {
	n.Helper()
	to := address
	if to.Is6() {
		to = to.WithZone("probe0")
	}
	listener, err := net.Listen("tcp", "[::]:0")
	must(n.TB, err)
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).AddrPort().Port()
	must(n.TB, c.ns.Do(func(ns.NetNS) error {
		connection, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, port).String(), time.Second)
		if err == nil {
			n.Errorf("a pod reached its node at %s", to)
			return connection.Close()
		}
		return nil
	}))
}

func TestProbesOutliveTheAgent(t *testing.T) {
	n := serving(t)
	tenant := n.tenant("tenant", 300)
	n.agent.Kill()
	for _, podIP := range addressesOf(300) {
		exchange(t, nil, tenant.ns, podIP, "while the agent is away")
	}
	must(t, exec.Command("sh", "-c", "for f in -4 -6; do ip $f rule del priority 75; done").Run())
	n.startAgent()
	n.waitReady()
	for _, podIP := range addressesOf(300) {
		exchange(t, nil, tenant.ns, podIP, "once it is back")
	}
	tenant.vanish()
	n.eventually("the routes are gone with the namespace", func() bool { return len(probeLinks(t)) == 0 && probeRoutes() == "" })
}
