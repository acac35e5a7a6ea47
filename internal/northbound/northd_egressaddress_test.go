// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// TestEgressAddress checks with ovn-trace the packets of selected pods and of others, and the answers.
func TestEgressAddress(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	addrs := func(texts ...string) (list []netip.Addr) {
		for _, text := range texts {
			list = append(list, netip.MustParseAddr(text))
		}
		return list
	}
	in := translate.EgressAddressInputs{
		Name: "out", Sets: []string{"selected"}, Addresses: addrs("198.51.100.7", "2001:db8:7::7"), Node: "n2", NextHops: addrs("100.64.0.3", "fd00:64::3"),
		Joined: addrs("100.64.1.9", "fd00:64::109"), Gateways: addrs("100.64.0.1", "fd00:64::1"), Zone: 40000,
	}
	e.apply(translate.PodSetOwner("selected"), translate.PodSet(translate.PodSetInputs{Name: "selected", Numbers: []int32{0}}))
	e.apply(translate.EgressAddressOwner("out"), translate.EgressAddress(in))
	in.Name, in.Sets, in.Node = "down", []string{"stranded"}, ""
	e.apply(translate.PodSetOwner("stranded"), translate.PodSet(translate.PodSetInputs{Name: "stranded", Numbers: []int32{0}}))
	e.apply(translate.EgressAddressOwner("down"), translate.EgressAddress(in))
	sets := map[string][]translate.PodSetPart{"selected": {{Name: "selected"}}, "stranded": {{Name: "stranded"}}}
	for i, name := range []string{"selected", "stranded", "other"} {
		e.apply(pod(name), podOf(translate.PodInputs{Name: name, Node: "n1", Subnet: "s1", Policy: translate.PodPolicy{Peers: sets[name]}}, i))
	}
	northd.Await("the router", func(sb *nbtest.Server) bool {
		ports := portsOf(sb)
		return slices.Contains(ports, "join-out_egress-out") && slices.Contains(ports, "other.ns")
	})
	zones := 0
	for _, row := range northd.Southbound.Rows("Datapath_Binding") {
		if ids, _ := row["external_ids"].(map[string]string); strings.HasPrefix(ids["name"], "out_egress-") && ids["snat-ct-zone"] == "40000" {
			zones++ // ovn-controller reads it
		}
	}
	if zones != 1 {
		t.Errorf("%d datapaths have the zone of the router", zones)
	}
	w := wire{t: t, server: server, northd: northd}
	macs := w.macs()
	var inner, outer string
	for name := range macs {
		if strings.HasPrefix(name, "out_egress-") && strings.HasSuffix(name, "-join") {
			inner, outer = name, strings.TrimSuffix(name, "-join")+"-out"
		}
	}
	bind := func(port, mac string, hops ...string) {
		for _, row := range northd.Southbound.Rows("Port_Binding") {
			for _, hop := range hops {
				if row["logical_port"] == port {
					northd.Southbound.Transact(nbtest.Op{"op": "insert", "table": "MAC_Binding", "row": map[string]any{
						"logical_port": port, "ip": hop, "mac": mac, "datapath": nbtest.UUID(row["datapath"].(string)), "timestamp": time.Now().UnixMilli(),
					}})
				}
			}
		}
	}
	source := netip.MustParseAddr(strings.Fields(addressesOfPort(podOf(translate.PodInputs{Name: "selected", Subnet: "s1"}, 0)[0]))[2])
	if out := w.trace("s1", "selected.ns", "ovn-cluster-s1", source, netip.MustParseAddr("2001:db8:99::9"), "udp.dst == 53", "new"); !strings.Contains(out, "ip6.dst = ff02::1:ff00:109;") {
		t.Errorf("the VPC's router does not solicit the router at its own multicast address:\n%s", out)
	}
	bind("ovn-cluster-join", macs[inner], "100.64.1.9", "fd00:64::109")
	bind(inner, macs["ovn-cluster-join"], "100.64.0.1", "fd00:64::1")
	bind(outer, "02:00:00:00:00:01", "100.64.0.3", "fd00:64::3")

	for family, outside := range addrs("203.0.113.9", "2001:db8:99::9") {
		address := in.Addresses[family].String()
		for i, name := range []string{"selected", "stranded", "other"} {
			source := podOf(translate.PodInputs{Name: name, Subnet: "s1"}, i)[0]
			of := netip.MustParseAddr(strings.Fields(addressesOfPort(source))[1+family])
			out := w.trace("s1", name+".ns", "ovn-cluster-s1", of, outside, "udp.dst == 53", "new")
			want := map[string]string{"selected": `output("node-n2")`, "other": `output("node-n1")`}[name]
			if outputs := strings.Count(out, "output("); want == "" && outputs > 0 || want != "" && (outputs != 1 || !strings.Contains(out, want)) {
				t.Errorf("a packet of pod %s to %s: want %q\n%s", name, outside, want, out)
			}
			if translated := strings.Contains(out, "src="+address); translated != (name == "selected") {
				t.Errorf("a packet of pod %s to %s has the source %s: %t\n%s", name, outside, address, translated, out)
			}
			// Packets to other pods and to nodes stay in the cluster.
			for _, inside := range [][]netip.Addr{addrs("10.17.0.9", "fd00:17::9"), addrs("192.0.2.3", "2001:db8::3")} {
				if out := w.trace("s1", name+".ns", "ovn-cluster-s1", of, inside[family], "udp.dst == 53", "new"); strings.Contains(out, "src="+address) {
					t.Errorf("a packet of pod %s to %s has the source %s\n%s", name, inside[family], address, out)
				}
			}
			if name == "selected" {
				out := w.trace("join", "node-n1", outer, outside, of, "udp.src == 53", "est,rpl")
				if !strings.Contains(out, `output("selected.ns")`) {
					t.Errorf("an answer from %s does not arrive:\n%s", outside, out)
				}
			}
		}
		echo := map[bool]string{true: "icmp4.type == 8 && icmp4.code == 0", false: "icmp6.type == 128 && icmp6.code == 0"}[outside.Is4()]
		if out := w.trace("join", "node-n1", outer, outside, in.Addresses[family], echo, "new"); strings.Contains(out, "output(") {
			t.Errorf("the router's answer to %s leaves:\n%s", outside, out)
		}
	}
}

// addressesOfPort returns the value of Logical_Switch_Port.addresses of a pod's row.
func addressesOfPort(row desired.Row) string { return row.Model.(*nb.LogicalSwitchPort).Addresses[0] }
