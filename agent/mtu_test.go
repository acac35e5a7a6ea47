// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/host"
	v1 "github.com/kiln-net/kiln/api/v1"
)

// mtus returns the MTUs of ovn0 and of both ends of a container's link.
func (c *container) mtus() string {
	c.Helper()
	name, _ := c.port()
	inside := 0
	c.do(func() error {
		inside = c.link("eth0").Attrs().MTU
		return nil
	})
	return fmt.Sprint(c.link(host.JoinInterface).Attrs().MTU, inside, c.link(name).Attrs().MTU)
}

// Packets of pods that exceed the MTU of the tunnels would be lost.
func TestPodsFollowTheMTUOfTunnels(t *testing.T) {
	n := serving(t)
	n.router()
	plain, own := n.sandbox(n.pod("plain", 10), newID()), n.sandbox(n.pod("own", 11), newID())
	base := own.pod.DeepCopy()
	own.pod.Annotations[v1.AnnotationMTU.For(v1.ProviderOVN)] = "1290"
	must(t, n.api.Patch(t.Context(), own.pod, client.MergeFrom(base)))
	for _, c := range []*container{plain, own} {
		c.mustAdd()
		t.Cleanup(c.mustDel)
	}
	tunnels := n.link("eth1")
	t.Cleanup(func() { must(t, netlink.LinkSetMTU(tunnels, tunnelMTU)) })
	follow := func(mtu int) {
		t.Helper()
		n.eventually("ovn0 and pods have the MTU that tunnels leave, but for those whose subnet has its own", func() bool {
			return plain.mtus() == fmt.Sprint(mtu, mtu, mtu) && own.mtus() == fmt.Sprint(mtu, 1290, 1290)
		})
		must(t, plain.check())
		must(t, own.check())
		for i, address := range addressesOf(11) {
			if from := exchange(t, plain.ns, own.ns, address, "hello"); from != addressesOf(10)[i] {
				t.Errorf("the pod is seen as %s", from)
			}
		}
	}
	follow(podMTU)
	must(t, netlink.LinkSetMTU(tunnels, tunnelMTU-60))
	follow(podMTU - 60)
	n.agent.Kill()
	must(t, netlink.LinkSetMTU(tunnels, tunnelMTU-20))
	n.startAgent()
	follow(podMTU - 20)
	must(t, netlink.LinkSetMTU(tunnels, tunnelMTU))
	follow(podMTU)
	n.vsctl("set", "Open_vSwitch", ".", "external_ids:ovn-encap-ip="+nodeIPs[1].Addr().String())
	follow(podMTU - 20) // eth0 has the same MTU, and IPv6 headers have 20 bytes more
}
