// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package transit_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/transit"
	"github.com/kiln-net/kiln/internal/gateway"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

const (
	dualJoin = "100.64.0.0/16,fd00:100:64::/112"
	dualNet  = "10.50.0.0/24,fd00:10:50::/64"
)

func anyAddress(netip.Addr) bool { return true }

// object returns the IP object of a VPC's gateway router.
func object(vpc string) *kubeovnv1.IP {
	return &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "transit-" + vpc}}
}

func TestAGatewayRouterIsCreatedMovedAndDeleted(t *testing.T) {
	c := start(t, dualJoin, "n1", "n2", "n3")
	v := c.vpc("blue", dualNet, true, nil)
	c.says(v, metav1.ConditionTrue, transit.ReasonCarried)
	first := *v.Status.Transit
	if len(first.Addresses) != 2 || first.Node == "" || first.Standby == "" || first.Node == first.Standby {
		t.Fatalf("the way out is %+v", first)
	}
	c.routers("blue_gateway on " + first.Node)
	c.routesOf("blue", "0.0.0.0/0", "10.96.0.0/12", "::/0", "fd00:10:96::/108")
	ip := object("blue")
	if !c.Get(ip) || ip.Spec.IPAddress != strings.Join(first.Addresses, ",") {
		t.Errorf("the IP object has %q, the status %q", ip.Spec.IPAddress, first.Addresses)
	}
	if expected := c.leases.Expecting(); !slices.Equal(expected, slices.Sorted(slices.Values([]string{first.Node, first.Standby}))) {
		t.Errorf("%v are expected to renew Leases, want %s and %s", expected, first.Node, first.Standby)
	}

	c.Measures(1, "kiln_vpc_transit_info", "vpc", "blue", "node", first.Node, "standby", first.Standby, "addresses", strings.Join(first.Addresses, ","))
	failovers, counted := c.Metric("kiln_vpc_transit_failovers_total", "vpc", "blue")
	if !counted {
		t.Error("the VPC has no counter before its first failover")
	}

	c.leases.Set(first.Standby, gateway.Alive)
	c.leases.Set(first.Node, gateway.Stopped)
	c.routers("blue_gateway on " + first.Standby)
	c.Measures(failovers+1, "kiln_vpc_transit_failovers_total", "vpc", "blue")
	c.Eventually(func() string {
		if c.Get(v); v.Status.Transit.Node != first.Standby || v.Status.Transit.Standby == first.Node || !slices.Equal(v.Status.Transit.Addresses, first.Addresses) {
			return fmt.Sprintf("the way out has become %+v, and was %+v", *v.Status.Transit, first)
		}
		return ""
	})
	second := *v.Status.Transit
	c.leases.Set(first.Node, gateway.Alive) // it has recovered, and nothing moves back

	c.run()
	c.node("n4")
	c.routers("blue_gateway on " + second.Node)
	if c.Get(v); !slices.Equal(v.Status.Transit.Addresses, first.Addresses) || v.Status.Transit.Standby != second.Standby {
		t.Errorf("after a restart the way out is %+v, and was %+v", *v.Status.Transit, second)
	}

	c.Change(v, func() { v.Spec.ClusterAccess = kubeovnv1.ClusterAccessNone })
	c.routers()
	c.routesOf("blue")
	c.Eventually(func() string {
		c.Get(v)
		if c.Get(object("blue")) || v.Status.Transit != nil || apimeta.FindStatusCondition(v.Status.Conditions, kubeovnv1.ConditionTransitReady) != nil {
			return fmt.Sprintf("the IP object or the status is left: %+v", v.Status)
		}
		return ""
	})
	if holders := c.process.Allocator.Holders("join", anyAddress); len(holders) != 2*4 {
		t.Errorf("%v hold addresses, want 4 nodes", holders)
	}
	c.Change(v, func() { v.Spec.ClusterAccess = "" })
	c.says(v, metav1.ConditionTrue, transit.ReasonCarried)
}

func TestAGatewayRouterIsDeletedWithItsVpcWhileTheControllerIsDown(t *testing.T) {
	c := start(t, dualJoin, "n1")
	v := c.vpc("blue", "", false, nil)
	c.says(v, metav1.ConditionTrue, transit.ReasonCarried, "n1")
	c.Rests("transit")
	c.Recreates(object("blue"))
	c.RestoresRows("Transit//blue")
	c.process.Stop()
	c.Change(v, func() { v.Finalizers = nil })
	c.Delete(v)
	c.run()
	c.routers()
	c.Rows("NAT", func(row nbtest.Row) string { return fmt.Sprint(row["external_ip"]) })
	c.Eventually(func() string {
		if c.Get(object("blue")) {
			return "the IP object is left"
		}
		return ""
	})
}

func TestAGatewayRouterKeepsItsAddressWhenTheDatabaseIsLost(t *testing.T) {
	c := start(t, dualJoin, "n1")
	a, b := c.vpc("a", "", false, nil), c.vpc("b", "", false, nil)
	c.says(a, metav1.ConditionTrue)
	c.says(b, metav1.ConditionTrue)
	macs := func() map[string]any {
		found := map[string]any{}
		for _, row := range c.Database.Rows("Logical_Router_Port") {
			if name := row["name"].(string); strings.HasSuffix(name, "_gateway-join") {
				found[name] = row["mac"]
			}
		}
		return found
	}
	given := macs()
	c.process.Stop()
	c.Database.Transact(nbtest.Op{"op": "delete", "table": "Logical_Router", "where": []any{}}, nbtest.Op{"op": "delete", "table": "Logical_Switch", "where": []any{}})
	c.run()
	c.routers("a_gateway on n1", "b_gateway on n1")
	for _, before := range []*kubeovnv1.Vpc{a, b} {
		after := before.DeepCopy()
		if c.Get(after); !slices.Equal(after.Status.Transit.Addresses, before.Status.Transit.Addresses) {
			t.Errorf("VPC %s leaves with %v, and left with %v", before.Name, after.Status.Transit.Addresses, before.Status.Transit.Addresses)
		}
	}
	if again := macs(); len(given) != 2 || !maps.Equal(given, again) {
		t.Errorf("the gateway routers had the MAC addresses %v, and have %v", given, again)
	}
}

func TestNodesThatCarryNothingCostNothing(t *testing.T) {
	c := start(t, dualJoin, "n1", "n2")
	for i := range 20 {
		v := c.vpc(fmt.Sprint("v", i), "", false, nil)
		c.says(v, metav1.ConditionTrue)
		c.Ready(v) // another controller writes Ready
	}
	statuses, transactions := c.process.Writes("PATCH", "/vpcs/"), c.process.Transactions()
	n3 := c.node("n3")
	c.leases.Set("n3", gateway.Stopped)
	c.leases.Set("n3", gateway.Alive)
	c.Delete(n3)
	c.Eventually(func() string {
		if slices.Contains(c.Database.Names("Logical_Switch_Port"), "node-n3") {
			return "the node's port is still there"
		}
		return ""
	})
	if got := c.process.Writes("PATCH", "/vpcs/") - statuses; got != 0 {
		t.Errorf("a node that came and went cost %d patches of VPCs", got)
	}
	if got := c.process.Transactions() - transactions; got > 2 {
		t.Errorf("a node that came and went cost %d transactions, want its own two", got)
	}
}

func TestNobodyServes(t *testing.T) {
	c := start(t, dualJoin)
	v := c.vpc("blue", "", false, nil)
	c.says(v, metav1.ConditionFalse, transit.ReasonNoNode)
	gone := c.vpc("gone", "", false, nil)
	c.says(gone, metav1.ConditionFalse, transit.ReasonNoNode)
	c.process.Stop()
	c.Change(gone, func() { gone.Finalizers = nil })
	c.Delete(gone)
	c.run()
	c.Gone(object("gone")) // a gateway router without rows leaves only this object
	c.node("n1")
	c.says(v, metav1.ConditionTrue, "n1 carries")
	c.leases.Set("n1", gateway.Stopped)
	c.says(v, metav1.ConditionFalse, transit.ReasonNoNode, "still sent to n1")
	c.routers("blue_gateway on n1")
}

func TestRoutesOfTheUserStay(t *testing.T) {
	c := start(t, dualJoin, "n1")
	v := c.vpc("blue", dualNet, true, func(s *kubeovnv1.VpcSpec) {
		s.StaticRoutes = []*kubeovnv1.StaticRoute{{CIDR: "0.0.0.0/0", NextHopIP: "10.50.0.9"}}
	})
	c.says(v, metav1.ConditionTrue)
	c.routesOf("blue", "10.96.0.0/12", "::/0", "fd00:10:96::/108")
	c.Change(v, func() { v.Spec.StaticRoutes[0].CIDR = "10.96.0.0/12" })
	c.routesOf("blue", "0.0.0.0/0", "::/0", "fd00:10:96::/108")
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "blue-net"}}
	c.Get(s)
	c.Change(s, func() { s.Spec.NATOutgoing = false })
	c.routesOf("blue", "fd00:10:96::/108")
}

// While a subnet's spec is invalid, the last valid one stays applied, also that of its VPC.
func TestAnInvalidSubnetKeepsItsRoutes(t *testing.T) {
	c := start(t, dualJoin, "n1")
	v := c.vpc("blue", dualNet, true, nil)
	c.vpc("red", "", false, nil)
	c.says(v, metav1.ConditionTrue)
	c.routesOf("blue", "0.0.0.0/0", "10.96.0.0/12", "::/0", "fd00:10:96::/108")
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "blue-net"}}
	c.Get(s)
	c.Change(s, func() {
		s.Spec.Gateway, s.Spec.NATOutgoing, s.Spec.RouteTable, s.Spec.Vpc = "192.0.2.1,2001:db8::1", false, "wrong", "red"
	})
	c.Says(s, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "gateway")
	c.Create(&kubeovnv1.Subnet{ // its routes show that the VPC was reconciled after the change
		ObjectMeta: metav1.ObjectMeta{Name: "blue-more"},
		Spec:       kubeovnv1.SubnetSpec{Vpc: "blue", CIDRBlock: "10.51.0.0/24", RouteTable: "more"},
	})
	c.routesOf("blue", "0.0.0.0/0", "0.0.0.0/0 more", "10.96.0.0/12", "10.96.0.0/12 more",
		"::/0", "::/0 more", "fd00:10:96::/108", "fd00:10:96::/108 more")
	c.routesOf("red", "10.96.0.0/12", "fd00:10:96::/108")
}

func TestAddressesAddedForServicesAreReached(t *testing.T) {
	c := start(t, dualJoin, "n1")
	v := c.vpc("blue", "", false, nil)
	c.says(v, metav1.ConditionTrue)
	c.routesOf("blue", "10.96.0.0/12", "fd00:10:96::/108")
	more := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.200.0.0/24"}}}
	c.Create(more)
	t.Cleanup(func() { _ = c.Client.Delete(context.Background(), more) })
	c.routesOf("blue", "10.200.0.0/24", "10.96.0.0/12", "fd00:10:96::/108")
	c.Delete(more)
	c.Eventually(func() string { // no controller removes its finalizer in this test
		if !c.Get(more) {
			return ""
		}
		more.Finalizers = nil
		if err := c.Client.Update(t.Context(), more); err != nil {
			return err.Error()
		}
		return "it is still there"
	})
	c.routesOf("blue", "10.96.0.0/12", "fd00:10:96::/108")
}
