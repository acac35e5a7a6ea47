// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/validation"
)

func TestVpcsMayHaveTheSameAddresses(t *testing.T) {
	n := start(t)
	for _, tenant := range []string{"red", "blue"} {
		n.Ready(n.newVpc(tenant, nil), n.newSubnet(tenant+"-net", tenant, "10.0.0.0/24,fd00:10::/64"))
	}
	n.Rows("Logical_Router_Port", func(row nbtest.Row) string {
		return fmt.Sprint(row["name"], " ", row.Strings("networks"))
	}, "blue-blue-net [10.0.0.1/24 fd00:10::1/64]", "ovn-cluster-join [100.64.0.1/16]", "ovn-cluster-ovn-default [10.16.0.1/16]",
		"red-red-net [10.0.0.1/24 fd00:10::1/64]")
}

func staticRoutes(row nbtest.Row) string {
	if !ofVpc(row, "tenant") {
		return ""
	}
	text := fmt.Sprintf("%s %s by %s", row["policy"], row["ip_prefix"], row["nexthop"])
	if table := row["route_table"]; table != "" {
		text += fmt.Sprint(" in ", table)
	}
	if options := row["options"].(map[string]string); len(options) > 0 {
		text += fmt.Sprint(" ", options)
	}
	return text
}

func TestStaticRoutes(t *testing.T) {
	n := start(t)
	vpc := n.newVpc("tenant", func(s *kubeovnv1.VpcSpec) {
		s.StaticRoutes = []*kubeovnv1.StaticRoute{
			{CIDR: "10.9.0.0/16", NextHopIP: "10.0.0.5"},
			{CIDR: "10.9.0.0/16", NextHopIP: "10.0.0.6", ECMPMode: "ecmp_symmetric_reply"},
			{CIDR: "10.0.0.0/24", NextHopIP: "10.0.0.1", Policy: "policySrc"},
			{CIDR: "fd00:9::/64", NextHopIP: "fd00:10::5", RouteTable: "t"},
		}
	})
	n.Says(vpc, kubeovnv1.ConditionReady, metav1.ConditionFalse, validation.ReasonNextHopUnreachable,
		"staticRoutes[0]: next hop 10.0.0.5", "staticRoutes[3]: next hop fd00:10::5")
	n.Ready(n.newSubnet("net", "tenant", "10.0.0.0/24,fd00:10::/64"))
	n.Ready(vpc)
	want := []string{
		"dst-ip 10.9.0.0/16 by 10.0.0.5", "dst-ip 10.9.0.0/16 by 10.0.0.6 map[ecmp_symmetric_reply:true]",
		"dst-ip fd00:9::/64 by fd00:10::5 in t", "src-ip 10.0.0.0/24 by 10.0.0.1",
	}
	n.Rows("Logical_Router_Static_Route", staticRoutes, want...)

	rows := n.Database.Rows("Logical_Router_Static_Route")
	before := n.process.Transactions()
	n.Change(vpc, func() { slices.Reverse(vpc.Spec.StaticRoutes) })
	n.Ready(vpc)
	if sent := n.process.Transactions() - before; sent != 0 {
		t.Errorf("another order of the routes cost %d transactions", sent)
	}
	if after := n.Database.Rows("Logical_Router_Static_Route"); !slices.Equal(slices.Sorted(maps.Keys(rows)), slices.Sorted(maps.Keys(after))) {
		t.Error("another order made other rows of the routes")
	}

	n.Change(vpc, func() {
		vpc.Spec.StaticRoutes = append(vpc.Spec.StaticRoutes,
			&kubeovnv1.StaticRoute{CIDR: "10.9.1.1/16", NextHopIP: "10.0.0.5"}, // the network is 10.9.0.0/16
			&kubeovnv1.StaticRoute{CIDR: "10.8.0.0/16", NextHopIP: "fd00:10::5"},
			&kubeovnv1.StaticRoute{CIDR: "10.7.0.0/16", NextHopIP: "10.0.0.7", BFDID: "watched"})
	})
	n.Says(vpc, kubeovnv1.ConditionValidated, metav1.ConditionFalse, validation.ReasonRouteInvalid,
		"staticRoutes[4]: the route to 10.9.0.0/16 by 10.0.0.5 is in staticRoutes[3] already", "staticRoutes[5]: cidr 10.8.0.0/16 and nextHopIP fd00:10::5")
	n.Says(vpc, kubeovnv1.ConditionReady, metav1.ConditionFalse, validation.ReasonRouteInvalid, "the last valid spec stays applied")
	n.Says(vpc, kubeovnv1.ConditionFieldsSupported, metav1.ConditionFalse, "bfdId of staticRoutes[6] (next hop 10.0.0.7 is in no external subnet")
	n.Rows("Logical_Router_Static_Route", staticRoutes, want...)

	n.Change(vpc, func() { vpc.Spec.StaticRoutes = vpc.Spec.StaticRoutes[:1] })
	n.Ready(vpc)
	n.Rows("Logical_Router_Static_Route", staticRoutes, "dst-ip fd00:9::/64 by fd00:10::5 in t")
}

func TestAUsersDefaultRouteTakesThePlaceOfOurs(t *testing.T) {
	n := start(t)
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: kubeovnv1.DefaultVpc}}
	n.Ready(vpc)
	hops := func(row nbtest.Row) string {
		return fmt.Sprint(row["ip_prefix"], " by ", row["nexthop"], " ", row["route_table"])
	}
	n.Rows("Logical_Router_Static_Route", hops, "0.0.0.0/0 by 100.64.0.1 ")
	n.Change(vpc, func() {
		vpc.Spec.StaticRoutes = []*kubeovnv1.StaticRoute{{CIDR: "0.0.0.0/0", NextHopIP: "10.16.0.9"}}
	})
	n.Rows("Logical_Router_Static_Route", hops, "0.0.0.0/0 by 10.16.0.9 ")
	other := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.17.0.0/16", RouteTable: "t"}}
	n.Create(other)
	n.Rows("Logical_Router_Static_Route", hops, "0.0.0.0/0 by 10.16.0.9 ", "0.0.0.0/0 by 100.64.0.1 t")
	n.Change(vpc, func() { vpc.Spec.StaticRoutes = nil })
	n.Delete(other)
	n.Rows("Logical_Router_Static_Route", hops, "0.0.0.0/0 by 100.64.0.1 ")
}

func TestPolicyRoutes(t *testing.T) {
	n := start(t)
	policies := func(row nbtest.Row) string {
		if !ofVpc(row, "tenant") {
			return ""
		}
		return fmt.Sprintf("%v %s: %s %s", row["priority"], row["match"], row["action"], row.Strings("nexthops"))
	}
	net := n.newSubnet("net", "tenant", "10.0.0.0/24,fd00:10::/64")
	vpc := n.newVpc("tenant", func(s *kubeovnv1.VpcSpec) {
		s.PolicyRoutes = []*kubeovnv1.PolicyRoute{
			{Priority: 11, Match: "ip4.src == 10.0.0.9", Action: "drop"},
			{Priority: 10, Match: "tcp.dst == 80", Action: "reroute", NextHopIP: "10.0.0.5,10.0.0.6,fd00:10::5"},
			{Priority: 9, Match: "ip4.src == 10.0.0.0/24", Action: "allow"},
		}
	})
	n.Ready(vpc, net) // wait for the subnet, whose rows need other transactions
	want := []string{
		"10 ip4 && (tcp.dst == 80): reroute [10.0.0.5 10.0.0.6]", "10 ip6 && (tcp.dst == 80): reroute [fd00:10::5]",
		"11 ip4.src == 10.0.0.9: drop []", "9 ip4.src == 10.0.0.0/24: allow []",
	}
	n.Rows("Logical_Router_Policy", policies, want...)
	before := n.process.Transactions()
	n.Change(vpc, func() { slices.Reverse(vpc.Spec.PolicyRoutes) })
	n.Ready(vpc)
	if sent := n.process.Transactions() - before; sent != 0 {
		t.Errorf("another order of the policies cost %d transactions", sent)
	}

	n.Change(vpc, func() {
		vpc.Spec.PolicyRoutes = append(vpc.Spec.PolicyRoutes,
			&kubeovnv1.PolicyRoute{Priority: 11, Match: "ip4.src == 10.0.0.9", Action: "allow"},
			&kubeovnv1.PolicyRoute{Priority: 8, Match: "ip4.src === 10.0.0.9", Action: "drop"},
			&kubeovnv1.PolicyRoute{Priority: 7, Match: "ip4", Action: "reroute", NextHopIP: "10.1.0.1"})
	})
	n.Says(vpc, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "policyRoutes[3]: priority 11 and match", "policyRoutes[4]: match: at character")
	n.Rows("Logical_Router_Policy", policies, want...)
	n.Change(vpc, func() { vpc.Spec.PolicyRoutes = append(vpc.Spec.PolicyRoutes[:3], vpc.Spec.PolicyRoutes[5]) })
	n.Says(vpc, kubeovnv1.ConditionReady, metav1.ConditionFalse, validation.ReasonNextHopUnreachable, "policyRoutes[3]: next hop 10.1.0.1")
	n.Rows("Logical_Router_Policy", policies, slices.Insert(slices.Clone(want), 3, "7 ip4: reroute [10.1.0.1]")...)
	n.Says(vpc, kubeovnv1.ConditionValidated, metav1.ConditionTrue)
}

func TestFieldsOfTheUnderlayAreNamed(t *testing.T) {
	n := start(t)
	vpc := n.newVpc("tenant", func(s *kubeovnv1.VpcSpec) {
		s.EnableBfd, s.BFDPort = true, &kubeovnv1.BFDPort{Enabled: true}
	})
	n.Says(vpc, kubeovnv1.ConditionFieldsSupported, metav1.ConditionFalse, "enableBfd", "bfdPort")
	n.Ready(vpc)
}

// TestASubnetHasTheCauseOfItsVpc: users of the subnet may not be able to read the Vpc.
func TestASubnetHasTheCauseOfItsVpc(t *testing.T) {
	n := start(t)
	namesake := n.newSubnet("blue", "", "10.30.0.0/24")
	n.Ready(namesake)
	n.later(namesake)
	s := n.newSubnet("net", "blue", "10.0.0.0/24")
	n.Says(s, kubeovnv1.ConditionReady, metav1.ConditionFalse, kubeovnv1.ReasonWaiting, "Waiting: VPC blue does not exist: create it")
	n.newVpc("blue", nil)
	n.Says(s, kubeovnv1.ConditionReady, metav1.ConditionFalse, "Waiting: VPC blue has no router yet: there is a Subnet named blue")
	n.Delete(namesake)
	n.Ready(s)
}
