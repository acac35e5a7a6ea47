// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/eventually"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/nodetest"
)

// gatewayRouterIPs are the addresses of a VPC's gateway router.
var gatewayRouterIPs = []netip.Addr{netip.MustParseAddr("100.64.0.77"), netip.MustParseAddr("fd00:100:64::4d")}

// TestWhatLeavesCustomVPCs sends from an address of the join subnet, as gateway routers of VPCs do.
func TestWhatLeavesCustomVPCs(t *testing.T) {
	n := serving(t)
	n.router()
	gateway := n.forwarder("gateway_h", net.HardwareAddr{2, 0, 0, 0, 0, 77}, netip.PrefixFrom(gatewayRouterIPs[0], joinCIDRs[0].Bits()), netip.PrefixFrom(gatewayRouterIPs[1], joinCIDRs[1].Bits()))
	far := n.farHost()
	pod := n.sandbox(n.pod("listener", 300), newID())
	pod.mustAdd()
	t.Cleanup(pod.mustDel)
	services := []string{"10.96.0.50", "fd00:10:96::32"}
	for i, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) {
			n := n.in(t)
			podIP, service := addressesOf(300)[i], netip.MustParseAddr(services[i])
			n.seen(gateway, far, outside[i].Addr(), nodeIPs[i].Addr())
			n.losesItsTranslation(gateway, far, outside[i].Addr())

			dial := func(to netip.Addr) (from string, err error) {
				listener := n.listen(pod.ns, podIP, 8080)
				defer listener.Close()
				err = gateway.Do(func(ns.NetNS) error {
					connection, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, 8080).String(), patience)
					if err != nil {
						return err
					}
					return connection.Close()
				})
				if err != nil {
					return "", err
				}
				accepted, err := listener.Accept()
				if err != nil {
					return "", err
				}
				defer accepted.Close()
				return accepted.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String(), nil
			}
			if from, err := dial(podIP); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("a VPC reached a pod of the default one by its address, from %q: %v", from, err)
			}
			key := []string{"ip", "ip6"}[i]
			nodetest.NFT(t, fmt.Sprintf(`add table inet services
				add chain inet services prerouting { type nat hook prerouting priority dstnat; }
				add rule inet services prerouting %[1]s daddr %[2]s dnat %[1]s to %[3]s`, key, service, podIP))
			t.Cleanup(func() { nodetest.NFT(t, "delete table inet services") })
			if from, err := dial(service); err != nil || from != joinIPs[i].String() {
				t.Errorf("through a Service the pod sees %q (%v), want the node's %s, to which it can answer", from, err, joinIPs[i])
			}
		})
	}
}

// listen opens a listener in a namespace.
func (n *node) listen(namespace ns.NetNS, address netip.Addr, port uint16) net.Listener {
	n.Helper()
	var listener net.Listener
	must(n.TB, namespace.Do(func(ns.NetNS) (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(address, port).String())
		return err
	}))
	return listener
}

// TestNodesOfAVpcRenewTheirLeases follows what the status of a Vpc says: its node renews, its standby as well, and others give up.
func TestNodesOfAVpcRenewTheirLeases(t *testing.T) {
	n := serving(t)
	vpc := &v1.Vpc{}
	vpc.Name = "blue"
	must(t, n.api.Create(t.Context(), vpc))
	t.Cleanup(func() { _ = n.api.Delete(t.Context(), vpc) })
	carry := func(active, standby string) {
		t.Helper()
		base := vpc.DeepCopy()
		vpc.Status.Transit = &v1.VpcTransit{Node: active, Standby: standby}
		must(t, n.api.Status().Patch(t.Context(), vpc, client.MergeFrom(base)))
	}
	renews := func() {
		t.Helper()
		before := n.lease().Spec.RenewTime
		n.eventually("the Lease is renewed", func() bool {
			now := n.lease().Spec.RenewTime
			return now != nil && (before == nil || now.After(before.Time))
		})
	}
	gone := func() {
		t.Helper()
		n.eventually("the Lease is given up", func() bool { return n.lease().Spec.RenewTime == nil })
	}
	carry(nodeName, "other")
	renews()
	carry("other", nodeName)
	renews()
	carry("other", "third")
	gone()

	// A restarted agent whose node is no longer a gateway releases its Lease. An expired Lease would keep the node from being chosen
	// again.
	carry(nodeName, "other")
	renews()
	n.agent.Kill()
	carry("other", "third")
	if n.lease().Spec.RenewTime == nil {
		t.Fatal("an agent that was killed has given up its Lease")
	}
	n.startAgent()
	n.waitReady()
	gone()

	// While the data path is down, the Lease is left to expire.
	carry(nodeName, "other")
	renews()
	n.server.Kill()
	n.eventually("readiness notices", func() bool { return n.health("/readyz") != 200 })
	carry("other", "third")
	eventually.Stays(t, 3*gateway.RenewEvery, func() string {
		if n.lease().Spec.RenewTime == nil {
			return "a node that does not serve has given up its Lease"
		}
		return ""
	})
	n.startDatabase()
	n.waitReady()
	gone()
}
