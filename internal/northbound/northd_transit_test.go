// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// tenants are two VPCs that use the same subnet addresses: the default VPC's pod addresses, and the join subnet's.
var tenants = []string{"blue", "red"}

// TestTransit checks with ovn-trace the packets that leave such VPCs, and the replies.
func TestTransit(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	for i, name := range tenants {
		applyTenant(e, i, name)
	}
	e.apply(pod("default"), podOf(translate.PodInputs{Name: "default", Node: "n1", Subnet: "s1"}, 3))
	northd.Await("the ways out", func(sb *nbtest.Server) bool {
		ports := portsOf(sb)
		return slices.Contains(ports, "join-red_gateway") && slices.Contains(ports, "red-shut.ns") && slices.Contains(ports, "default.ns")
	})
	w := wire{t: t, server: server, northd: northd}
	w.learn()
	for i, name := range tenants {
		for family := range 2 {
			open, shut := tenantAddress(0, family), tenantAddress(1, family)
			dns := []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::a")}[family]
			outside := []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")}[family]
			address := transitAddress(i, family)
			for _, c := range []struct {
				subnet   string
				src, dst netip.Addr
				passes   bool
			}{
				{"open", open, dns, true}, {"open", open, outside, true}, {"shut", shut, dns, true}, {"shut", shut, outside, false},
			} {
				network := name + "-" + c.subnet
				out := w.trace(network, network+".ns", name+"-"+network, c.src, c.dst, "udp.dst == 53", "new")
				if passes := strings.Contains(out, "src="+address.String()) && strings.Contains(out, `output("node-n1")`); passes != c.passes {
					t.Errorf("%s of VPC %s to %s: passes with address %s: %t, want %t\n%s", c.src, name, c.dst, address, passes, c.passes, out)
				}
			}
			for subnet, dst := range map[string]netip.Addr{"open": open, "shut": shut} {
				out := w.trace("join", "node-n1", name+"_gateway-join", dns, dst, "udp.src == 53", "est,rpl")
				if !strings.Contains(out, `output("`+name+"-"+subnet+`.ns")`) {
					t.Errorf("replies to %s of VPC %s do not arrive:\n%s", dst, name, out)
				}
			}
			echo := map[bool]string{true: "icmp4.type == 8 && icmp4.code == 0", false: "icmp6.type == 128 && icmp6.code == 0"}[open.Is4()]
			if out := w.trace("s1", "default.ns", "ovn-cluster-s1", open, address, echo, "new"); strings.Contains(out, "output") {
				t.Errorf("the answer to a pod of the default VPC went elsewhere, perhaps to the pod of VPC %s with the same address:\n%s", name, out)
			}
		}
	}
}

// tenantAddress is the pod's address in a tenant's subnet: subnet 0 is "open", subnet 1 is "shut".
func tenantAddress(subnet, family int) netip.Addr {
	return netip.MustParseAddr([][]string{{"10.16.0.5", "fd00:16::5"}, {"100.64.0.5", "fd00:64::5"}}[subnet][family])
}

func transitAddress(tenant, family int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf([]string{"100.64.1.%d", "fd00:64::10%d"}[family], tenant+1))
}

// applyTenant applies a VPC with one subnet with natOutgoing, one without, and a pod in each.
func applyTenant(e *engine, i int, name string) {
	e.t.Helper()
	e.apply(translate.ProtectionOwner(name), translate.Protection(name, v1alpha1.ControlPlaneProtection{}))
	e.apply(vpc(name), translate.Vpc(translate.VpcInputs{Name: name}))
	for s, kind := range []string{"open", "shut"} {
		var cidrs []netip.Prefix
		var addresses, gateways []netip.Addr
		for family, bits := range []int{16, 112} {
			addresses = append(addresses, tenantAddress(s, family))
			cidrs = append(cidrs, netip.PrefixFrom(addresses[family], bits).Masked())
			gateways = append(gateways, cidrs[family].Addr().Next())
		}
		network := name + "-" + kind
		e.apply(subnet(network), translate.Subnet(translate.SubnetInputs{Name: network, Vpc: name, CIDRs: cidrs, Gateways: gateways}))
		e.apply(pod(network), translate.Pod(translate.PodInputs{
			Namespace: "ns", Name: network, Subnet: network, Vpc: name, Node: "n2", MAC: net.HardwareAddr{2, 2, 0, byte(i), 0, byte(s)}, Addresses: addresses,
		}))
	}
	e.apply(translate.TransitOwner(name), translate.Transit(translate.TransitInputs{
		Vpc: name, Node: "n1", MAC: net.HardwareAddr{2, 0, 0, 0, 1, byte(i)},
		NextHops:  []netip.Addr{netip.MustParseAddr("100.64.0.2"), netip.MustParseAddr("fd00:64::2")},
		Addresses: []netip.Addr{transitAddress(i, 0), transitAddress(i, 1)},
		Services:  []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:96::/108")},
		Outgoing:  []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16"), netip.MustParsePrefix("fd00:16::/112")},
	}))
}

// wire sends packets with ovn-trace.
type wire struct {
	t      *testing.T
	server *nbtest.Server
	northd *nbtest.Northd
}

// macs are the MAC addresses of router ports, by name.
func (w wire) macs() map[string]string {
	macs := map[string]string{}
	for _, row := range w.server.Rows("Logical_Router_Port") {
		macs[row["name"].(string)] = row["mac"].(string)
	}
	return macs
}

// learn adds the MAC bindings of next hops that ovn-controller learns from replies.
func (w wire) learn() {
	macs := w.macs()
	learn := func(port, mac string, hops ...netip.Addr) {
		for _, row := range w.northd.Southbound.Rows("Port_Binding") {
			if row["logical_port"] != port {
				continue
			}
			for _, hop := range hops {
				w.northd.Southbound.Transact(nbtest.Op{"op": "insert", "table": "MAC_Binding", "row": map[string]any{
					"logical_port": port, "ip": hop.String(), "mac": mac, "datapath": nbtest.UUID(row["datapath"].(string)),
					"timestamp": time.Now().UnixMilli(), // bindings expire
				}})
			}
		}
	}
	link := translate.TransitLink()
	for i, name := range tenants {
		inner, outer := name+"-"+name+"_transit", name+"_gateway-"+name+"_transit"
		learn(outer, macs[inner], link[:2]...)
		learn(inner, macs[outer], link[2:]...)
		learn(name+"_gateway-join", "02:00:00:00:00:00", netip.MustParseAddr("100.64.0.2"), netip.MustParseAddr("fd00:64::2"))
		learn("ovn-cluster-join", macs[name+"_gateway-join"], transitAddress(i, 0), transitAddress(i, 1))
	}
}

// trace returns the trace of a packet from a port of a switch to a router's port.
func (w wire) trace(network, from, to string, src, dst netip.Addr, rest, ct string) string {
	w.t.Helper()
	hardware := "02:00:00:00:00:00" // node-n1's
	for _, row := range w.server.Rows("Logical_Switch_Port") {
		if row["name"] == from {
			hardware, _, _ = strings.Cut(row.Strings("addresses")[0], " ")
		}
	}
	ip := map[bool]string{true: "ip4", false: "ip6"}[src.Is4()]
	return w.northd.Trace(network, fmt.Sprintf(
		`inport == "%[1]s" && eth.src == %[2]s && eth.dst == %[3]s && %[4]s.src == %[5]s && %[4]s.dst == %[6]s && ip.ttl == 64 && %[7]s`,
		from, hardware, w.macs()[to], ip, src, dst, rest), "--ct="+ct)
}
