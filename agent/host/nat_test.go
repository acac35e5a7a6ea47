// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/agent/agenttest"
	"github.com/kiln-net/kiln/agent/host"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/testing/golden"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

func TestSetMasquerade(t *testing.T) {
	fake := knftables.NewFake(knftables.InetFamily, host.NATTable)
	for _, step := range []struct {
		golden string
		m      host.Masquerade
	}{
		{"dual.nft", host.Masquerade{
			Cluster:  prefixes("10.16.0.0/16", "10.96.0.0/12", "100.64.0.0/16", "fd00:10:16::/112", "fd00:100:64::/112"),
			Outgoing: prefixes("10.16.0.0/16", "100.64.0.0/16", "fd00:10:16::/112", "fd00:100:64::/112"),
			Central:  prefixes("100.64.0.0/16", "fd00:100:64::/112"),
			Join:     prefixes("100.64.0.0/16", "fd00:100:64::/112"),
			Node:     prefixes("192.0.2.1/32", "2001:db8::1/128"),
		}},
		{"gateway.nft", host.Masquerade{
			Cluster:  prefixes("10.16.0.0/16", "10.17.0.0/24", "fd00:10:17::/112"),
			Outgoing: prefixes("10.16.0.0/16", "10.17.0.0/24", "fd00:10:17::/112"),
			Central:  prefixes("10.17.0.0/24", "fd00:10:17::/112"),
			SourceNAT: []host.SourceNAT{
				{netip.MustParsePrefix("10.17.0.0/24"), netip.MustParseAddr("192.0.2.7")},
				{netip.MustParsePrefix("fd00:10:17::/112"), netip.MustParseAddr("2001:db8::7")},
			},
			Policies: []host.Policy{{Subnet: "shop", From: prefixes("10.17.0.0/24", "fd00:10:17::/112"), Rules: []gateway.NATRule{
				{Sources: prefixes("10.17.0.5/32", "10.17.0.0/28", "10.17.0.3/32"), Destinations: prefixes("198.51.100.0/24", "2001:db8:1::/48"), Forward: true},
				{Destinations: prefixes("2001:db8:2::/48")},
				{Forward: true},
			}}},
		}},
		{"ipv4-without-nat.nft", host.Masquerade{Cluster: prefixes("10.16.0.0/16"), Node: prefixes("192.0.2.1/32")}},
	} {
		t.Run(step.golden, func(t *testing.T) {
			for range 2 { // the second time must not change anything
				if err := host.SetMasquerade(t.Context(), fake, step.m); err != nil {
					t.Fatal(err)
				}
			}
			golden.Compare(t, filepath.Join("testdata", step.golden), []byte(fake.Dump()))
		})
	}
}

func TestSourceNATAndPaths(t *testing.T) {
	n := agenttest.Serving(t)
	router := n.Router()
	far := n.FarHost()
	pod := n.Sandbox(n.Pod("talker", 300), agenttest.NewID())
	pod.MustAdd()
	t.Cleanup(pod.MustDel)
	other := n.Sandbox(n.Pod("listener", 301), agenttest.NewID())
	other.MustAdd()
	t.Cleanup(other.MustDel)
	_ = router
	for i, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) {
			podIP, otherIP := agenttest.AddressesOf(300)[i], agenttest.AddressesOf(301)[i]
			large := strings.Repeat("k", 200_000)
			if from := agenttest.Exchange(t, pod.NS, other.NS, otherIP, large); from != podIP {
				t.Errorf("the other pod sees %s, want the pod's %s", from, podIP)
			}
			if from := agenttest.Exchange(t, nil, pod.NS, podIP, large); from != agenttest.NodeIPs[i].Addr() {
				t.Errorf("the pod sees %s, want the node's %s", from, agenttest.NodeIPs[i].Addr())
			}
			if from := agenttest.Exchange(t, pod.NS, nil, agenttest.NodeIPs[i].Addr(), large); from != podIP {
				t.Errorf("the node sees %s, want the pod's %s", from, podIP)
			}
			if from := agenttest.Exchange(t, pod.NS, far, agenttest.Outside[i].Addr(), large); from != agenttest.NodeIPs[i].Addr() {
				t.Errorf("the host outside sees %s, want the node's %s", from, agenttest.NodeIPs[i].Addr())
			}
		})
	}
	t.Run("a flushed table comes back with the next change", func(t *testing.T) {
		n := n.In(t)
		before := ruleset(t)
		nodetest.NFT(t, "delete table inet "+host.NATTable)
		subnet := &v1.Subnet{}
		subnet.Name, subnet.Spec.CIDRBlock = "trigger", "10.20.0.0/16"
		n.Create(subnet)
		n.Eventually("the table is there again", func() bool { return strings.Contains(ruleset(t), "10.20.0.0/16") })
		must.Succeed(t, n.API.Delete(t.Context(), subnet))
		n.Eventually("the table is as before", func() bool { return ruleset(t) == before })
	})
}

// gatewayRouterIPs are the addresses of a VPC's gateway router.
var gatewayRouterIPs = []netip.Addr{netip.MustParseAddr("100.64.0.77"), netip.MustParseAddr("fd00:100:64::4d")}

// TestWhatLeavesCustomVPCs sends from an address of the join subnet, as gateway routers of VPCs do.
func TestWhatLeavesCustomVPCs(t *testing.T) {
	n := agenttest.Serving(t)
	n.Router()
	gateway := n.Forwarder("gateway_h", net.HardwareAddr{2, 0, 0, 0, 0, 77},
		netip.PrefixFrom(gatewayRouterIPs[0], agenttest.JoinCIDRs[0].Bits()), netip.PrefixFrom(gatewayRouterIPs[1], agenttest.JoinCIDRs[1].Bits()))
	far := n.FarHost()
	pod := n.Sandbox(n.Pod("listener", 300), agenttest.NewID())
	pod.MustAdd()
	t.Cleanup(pod.MustDel)
	services := []string{"10.96.0.50", "fd00:10:96::32"}
	for i, family := range []string{"IPv4", "IPv6"} {
		t.Run(family, func(t *testing.T) {
			n := n.In(t)
			podIP, service := agenttest.AddressesOf(300)[i], netip.MustParseAddr(services[i])
			seen(n, gateway, far, agenttest.Outside[i].Addr(), agenttest.NodeIPs[i].Addr())
			losesItsTranslation(n, gateway, far, agenttest.Outside[i].Addr())

			dial := func(to netip.Addr) (from string, err error) {
				listener := listen(n, pod.NS, podIP, 8080)
				defer listener.Close()
				err = gateway.Do(func(ns.NetNS) error {
					connection, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, 8080).String(), agenttest.Patience)
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
			if from, err := dial(service); err != nil || from != agenttest.JoinIPs[i].String() {
				t.Errorf("through a Service the pod sees %q (%v), want the node's %s, to which it can answer", from, err, agenttest.JoinIPs[i])
			}
		})
	}
}

// listen opens a listener in a namespace.
func listen(n *agenttest.Node, namespace ns.NetNS, address netip.Addr, port uint16) net.Listener {
	n.Helper()
	var listener net.Listener
	must.Succeed(n.TB, namespace.Do(func(ns.NetNS) (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(address, port).String())
		return err
	}))
	return listener
}

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}
