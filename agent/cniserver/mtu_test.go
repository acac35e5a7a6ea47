// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver_test

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/host"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// mtus returns the MTUs of ovn0 and of both ends of a container's link.
func mtus(c *agenttest.Container) string {
	c.Helper()
	name, _ := c.Port()
	inside := 0
	c.Do(func() error {
		inside = c.Link("eth0").Attrs().MTU
		return nil
	})
	return fmt.Sprint(c.Link(host.JoinInterface).Attrs().MTU, inside, c.Link(name).Attrs().MTU)
}

// Packets of pods that exceed the MTU of the tunnels would be lost.
func TestPodsFollowTheMTUOfTunnels(t *testing.T) {
	n := agenttest.Serving(t)
	n.Router()
	plain, own := n.Sandbox(n.Pod("plain", 10), agenttest.NewID()), n.Sandbox(n.Pod("own", 11), agenttest.NewID())
	base := own.Pod.DeepCopy()
	own.Pod.Annotations[v1.AnnotationMTU.For(v1.ProviderOVN)] = "1290"
	must.Succeed(t, n.API.Patch(t.Context(), own.Pod, client.MergeFrom(base)))
	for _, c := range []*agenttest.Container{plain, own} {
		c.MustAdd()
		t.Cleanup(c.MustDel)
	}
	tunnels := n.Link("eth1")
	t.Cleanup(func() { must.Succeed(t, netlink.LinkSetMTU(tunnels, agenttest.TunnelMTU)) })
	follow := func(mtu int) {
		t.Helper()
		n.Eventually("ovn0 and pods have the MTU that tunnels leave, but for those whose subnet has its own", func() bool {
			return mtus(plain) == fmt.Sprint(mtu, mtu, mtu) && mtus(own) == fmt.Sprint(mtu, 1290, 1290)
		})
		must.Succeed(t, plain.Check())
		must.Succeed(t, own.Check())
		for i, address := range agenttest.AddressesOf(11) {
			if from := agenttest.Exchange(t, plain.NS, own.NS, address, "hello"); from != agenttest.AddressesOf(10)[i] {
				t.Errorf("the pod is seen as %s", from)
			}
		}
	}
	follow(agenttest.PodMTU)
	must.Succeed(t, netlink.LinkSetMTU(tunnels, agenttest.TunnelMTU-60))
	follow(agenttest.PodMTU - 60)
	n.Agent.Kill()
	must.Succeed(t, netlink.LinkSetMTU(tunnels, agenttest.TunnelMTU-20))
	n.StartAgent()
	follow(agenttest.PodMTU - 20)
	must.Succeed(t, netlink.LinkSetMTU(tunnels, agenttest.TunnelMTU))
	follow(agenttest.PodMTU)
	n.VSCtl("set", "Open_vSwitch", ".", "external_ids:ovn-encap-ip="+agenttest.NodeIPs[1].Addr().String())
	follow(agenttest.PodMTU - 20) // eth0 has the same MTU, and IPv6 headers have 20 bytes more
}
