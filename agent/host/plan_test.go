// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/k8s"
)

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func addresses(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func testNode(ips ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	for _, ip := range ips {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "n1"})
	return node
}

func testSubnet(name, cidr string, change func(*v1.SubnetSpec)) v1.Subnet {
	s := v1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.SubnetSpec{CIDRBlock: cidr}}
	if change != nil {
		change(&s.Spec)
	}
	return s
}

func testJoin(families int) v1.PodNetwork {
	return v1.PodNetwork{
		Allocated: true, LogicalSwitch: "join",
		Addresses: addresses("100.64.0.2", "fd00:100:64::2")[:families],
		CIDRs:     prefixes("100.64.0.0/16", "fd00:100:64::/112")[:families],
		Gateways:  addresses("100.64.0.1", "fd00:100:64::1")[:families],
	}
}

func TestNewPlan(t *testing.T) {
	nat := func(s *v1.SubnetSpec) { s.NATOutgoing = true }
	for name, c := range map[string]struct {
		join     v1.PodNetwork
		node     *corev1.Node
		recorded []netip.Addr // nil: all of the node
		subnets  []v1.Subnet
		services []netip.Prefix
		want     Plan
		err      string
	}{
		"both families": {
			join: testJoin(2), node: testNode("192.0.2.1", "2001:db8::1"), services: prefixes("10.96.0.0/12"),
			subnets: []v1.Subnet{testSubnet("join", "100.64.0.0/16,fd00:100:64::/112", nil), testSubnet("ovn-default", "10.16.0.0/16,fd00:10:16::/112", nat)},
			want: Plan{
				Addresses: prefixes("100.64.0.2/16", "fd00:100:64::2/112"),
				Routes: []Route{
					{netip.MustParsePrefix("10.16.0.0/16"), netip.MustParseAddr("100.64.0.1"), netip.MustParseAddr("192.0.2.1")},
					{netip.MustParsePrefix("fd00:10:16::/112"), netip.MustParseAddr("fd00:100:64::1"), netip.MustParseAddr("2001:db8::1")},
				},
				Masquerade: Masquerade{
					Cluster:  prefixes("10.16.0.0/16", "10.96.0.0/12", "100.64.0.0/16", "fd00:10:16::/112", "fd00:100:64::/112"),
					Outgoing: prefixes("10.16.0.0/16", "fd00:10:16::/112"),
					Node:     prefixes("192.0.2.1/32", "2001:db8::1/128"),
				},
			},
		},
		"a node without an address of a subnet's family has routes without a source": {
			join: testJoin(2), node: testNode("192.0.2.1"), subnets: []v1.Subnet{testSubnet("a", "fd00:10:16::/112", nil)},
			want: Plan{
				Addresses:  prefixes("100.64.0.2/16", "fd00:100:64::2/112"),
				Routes:     []Route{{To: netip.MustParsePrefix("fd00:10:16::/112"), Via: netip.MustParseAddr("fd00:100:64::1")}},
				Masquerade: Masquerade{Cluster: prefixes("100.64.0.0/16", "fd00:10:16::/112", "fd00:100:64::/112"), Node: prefixes("192.0.2.1/32")},
			},
		},
		"an address that is not recorded is no source": {
			join: testJoin(2), node: testNode("192.0.2.9", "2001:db8::1"), recorded: addresses("192.0.2.1", "2001:db8::1"),
			subnets: []v1.Subnet{testSubnet("a", "10.16.0.0/16,fd00:10:16::/112", nil)},
			want: Plan{
				Addresses: prefixes("100.64.0.2/16", "fd00:100:64::2/112"),
				Routes: []Route{
					{To: netip.MustParsePrefix("10.16.0.0/16"), Via: netip.MustParseAddr("100.64.0.1")},
					{netip.MustParsePrefix("fd00:10:16::/112"), netip.MustParseAddr("fd00:100:64::1"), netip.MustParseAddr("2001:db8::1")},
				},
				Masquerade: Masquerade{
					Cluster: prefixes("10.16.0.0/16", "100.64.0.0/16", "fd00:10:16::/112", "fd00:100:64::/112"),
					Node:    prefixes("192.0.2.9/32", "2001:db8::1/128"),
				},
			},
		},
		"a family that the join subnet lacks has no routes": {
			join: testJoin(1), node: testNode("192.0.2.1"), subnets: []v1.Subnet{testSubnet("a", "10.16.0.0/16,fd00:10:16::/112", nil)},
			want: Plan{
				Addresses:  prefixes("100.64.0.2/16"),
				Routes:     []Route{{netip.MustParsePrefix("10.16.0.0/16"), netip.MustParseAddr("100.64.0.1"), netip.MustParseAddr("192.0.2.1")}},
				Masquerade: Masquerade{Cluster: prefixes("10.16.0.0/16", "100.64.0.0/16", "fd00:10:16::/112"), Node: prefixes("192.0.2.1/32")},
			},
		},
		"a subnet that holds the node's own address is not routed away": {
			join: testJoin(1), node: testNode("10.16.3.4"), subnets: []v1.Subnet{testSubnet("a", "10.16.0.0/16", nat)},
			want: Plan{
				Addresses:  prefixes("100.64.0.2/16"),
				Masquerade: Masquerade{Cluster: prefixes("10.16.0.0/16", "100.64.0.0/16"), Outgoing: prefixes("10.16.0.0/16"), Node: prefixes("10.16.3.4/32")},
			},
		},
		"other VPCs, underlay and unreadable subnets have no place on the node": {
			join: testJoin(1), node: testNode("192.0.2.1"),
			subnets: []v1.Subnet{
				testSubnet("vpc", "10.17.0.0/16", func(s *v1.SubnetSpec) { s.Vpc = "other" }),
				testSubnet("vlan", "10.18.0.0/16", func(s *v1.SubnetSpec) { s.Vlan = "v" }),
				testSubnet("lan", "192.168.7.0/24", func(s *v1.SubnetSpec) { s.Provider = "macvlan.default" }),
				testSubnet("bad", "10.19.0.0", nil),
			},
			want: Plan{
				Addresses:  prefixes("100.64.0.2/16"),
				Masquerade: Masquerade{Cluster: prefixes("100.64.0.0/16"), Node: prefixes("192.0.2.1/32")},
			},
		},
		"an address outside the join subnet": {
			join: v1.PodNetwork{Addresses: addresses("10.0.0.1"), CIDRs: prefixes("100.64.0.0/16")}, node: testNode(), err: "is in no CIDR of the join subnet",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.recorded == nil {
				c.recorded = k8s.OwnIPs(c.node)
			}
			got, err := NewPlan(c.join, c.node, c.recorded, c.subnets, c.services)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got error %v, want %q in it", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			// Traffic that leaves custom VPCs has a source address of the join subnet, on every node.
			join := prefixes("100.64.0.0/16", "fd00:100:64::/112")[:len(c.join.CIDRs)]
			c.want.Join = join
			for i, to := range slices.Backward(join) {
				if i < len(c.join.Addresses) { // a route to the join subnet itself for each address of ovn0
					c.want.Routes = slices.Insert(c.want.Routes, 0, Route{To: to})
				}
			}
			c.want.Outgoing = disjoint(append(c.want.Outgoing, join...))
			c.want.Central = disjoint(append(c.want.Central, join...))
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestDisjoint(t *testing.T) {
	got := disjoint(prefixes("10.16.1.0/24", "10.16.0.5/16", "10.16.0.0/24", "10.17.0.0/16", "fd00::1/64", "fd00::/112", "10.17.0.0/16"))
	want := prefixes("10.16.0.0/16", "10.17.0.0/16", "fd00::/64")
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
