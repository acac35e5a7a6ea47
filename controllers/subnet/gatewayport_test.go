// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// provider sets the nodes that are ready for ProviderNetwork net1 of Vlan v.
func (n *network) provider(ready ...string) {
	n.Helper()
	p := &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: "net1"}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth1"}}
	if !n.Get(p) {
		n.Create(p)
	}
	base := p.DeepCopy()
	p.Status.Vlans, p.Status.ReadyNodes = []string{"v"}, ready
	n.Must(n.Client.Status().Patch(n.Context(), p, client.MergeFrom(base)))
}

// hosts waits until these chassis can host gateway ports.
func (n *network) hosts(want ...string) {
	n.Helper()
	n.Rows("Gateway_Chassis", func(row nbtest.Row) string { return fmt.Sprint(row["chassis_name"]) }, want...)
}

func (n *network) routerPorts(want ...string) {
	n.Helper()
	n.Rows("Logical_Router_Port", func(row nbtest.Row) string {
		if row["name"] != "ovn-cluster-lab" {
			return ""
		}
		return fmt.Sprint(row["networks"])
	}, want...)
}

func TestALogicalGatewayIsARouterPortOnReadyNodes(t *testing.T) {
	n := start(t)
	n.vlan("v", 30)
	s := underlay("lab", "10.30.0.0/24,fd00:30::/64", "10.30.0.254,fd00:30::fe", "v")
	s.Spec.LogicalGateway = true
	n.Create(s)
	n.Says(s, kubeovnv1.ConditionReady, metav1.ConditionFalse, "no node of ProviderNetwork net1 is ready")
	n.localnets("localnet.lab net1 30")
	n.routerPorts()

	n.provider("n1", "n2", "n3", "n4", "n5")
	n.Ready(s)
	n.routerPorts("[10.30.0.254/24 fd00:30::fe/64]")
	n.Rows("Gateway_Chassis", func(nbtest.Row) string { return "one" }, "one", "one", "one")
	n.provider("n4")
	n.hosts("n4")
	n.rows("Logical_Router_Port", "name", "ovn-cluster-join", "ovn-cluster-lab", "ovn-cluster-ovn-default")
	n.provider() // the port stays
	n.Says(s, kubeovnv1.ConditionReady, metav1.ConditionFalse, "no node of ProviderNetwork net1 is ready")
	n.routerPorts("[10.30.0.254/24 fd00:30::fe/64]")
	n.hosts("n4")
	n.provider("n4")
	n.Ready(s)

	// Nodes have routes to the subnet through OVN, like those to an overlay subnet.
	n.ignored(n.node("n1", "10.30.0.9"), "InternalIP 10.30.0.9 is ignored: it is in subnet lab: give the node an address outside")
	n.Get(s)
	n.Change(s, func() { s.Spec.LogicalGateway = false })
	n.Ready(s)
	n.routerPorts()
	n.hosts()
	n.localnets("localnet.lab net1 30")
}

func TestAGatewayPortLeavesNodesThatAreDown(t *testing.T) {
	n := start(t)
	n.vlan("v", 30)
	up := func(node *corev1.Node, status corev1.ConditionStatus) {
		t.Helper()
		base := node.DeepCopy()
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
		n.Must(n.Client.Status().Patch(n.Context(), node, client.MergeFrom(base)))
	}
	nodes, names := map[string]*corev1.Node{}, []string{"h1", "h2", "h3", "h4"}
	for _, name := range names {
		nodes[name] = n.node(name)
		up(nodes[name], corev1.ConditionTrue)
	}
	n.provider(names...)
	s := underlay("lab", "10.30.0.0/24", "10.30.0.254", "v")
	s.Spec.LogicalGateway = true
	n.Create(s)
	n.Ready(s)
	before := n.column("Gateway_Chassis", "chassis_name")
	for _, name := range before { // they leave their labels
		up(nodes[name], corev1.ConditionUnknown)
	}
	spare := slices.DeleteFunc(names, func(name string) bool { return slices.Contains(before, name) })[0]
	n.Eventually(func() string {
		for _, row := range n.Database.Rows("Gateway_Chassis") {
			if row["chassis_name"] == spare && fmt.Sprint(row["priority"]) == "3" {
				return ""
			}
		}
		return "node " + spare + " is up and does not host the port"
	})
	for _, name := range before {
		up(nodes[name], corev1.ConditionTrue)
	}
	n.hosts(before...)

	// Subnets without a gateway port do not depend on nodes.
	n.change(s, func() { s.Spec.LogicalGateway = false })
	n.hosts()
	n.Rests("subnet")
	passes := n.Reconciles("subnet")
	up(nodes["h1"], corev1.ConditionUnknown)
	n.provider("h2")
	n.Rests("subnet")
	if now := n.Reconciles("subnet"); now != passes {
		t.Errorf("a node that is down causes %d passes of a subnet without a gateway port", now-passes)
	}
}

func TestASubnetOnTheRouterDoesNotOverlapWithAnother(t *testing.T) {
	n := start(t)
	n.vlan("v", 30)
	n.provider("n1")
	n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.30.0.0/25"})
	s := underlay("lab", "10.30.0.0/24", "10.30.0.254", "v")
	s.Spec.U2OInterconnection = true
	n.Create(s)
	n.Says(s, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "overlaps with 10.30.0.0/25 of subnet shop")
	n.Get(s)
	n.Change(s, func() { s.Spec.U2OInterconnection = false })
	n.Ready(s)
	n.Change(s, func() { s.Spec.LogicalGateway, s.Spec.U2OInterconnection = true, true })
	n.Says(s, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "set one of them")
}

func TestAnInterconnectedSubnetHasARouterPortWithAnAddressOfItsOwn(t *testing.T) {
	n := start(t)
	n.vlan("v", 30)
	n.provider("n1")
	n.host("n1", "10.30.0.1") // a host of the physical network
	s := underlay("lab", "10.30.0.0/24,fd00:30::/64", "10.30.0.254,fd00:30::fe", "v")
	s.Spec.U2OInterconnection = true
	n.Create(s)
	n.Ready(s)
	n.routerPorts("[10.30.0.2/24 fd00:30::1/64]")
	n.Get(s)
	if st := s.Status; st.U2OInterconnectionIP != "10.30.0.2,fd00:30::1" || st.U2OInterconnectionMAC != "06:4b:0a:1e:00:02" || st.U2OInterconnectionVPC != "ovn-cluster" {
		t.Errorf("status is %+v", st)
	}
	record := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "u2o-interconnection.ovn-cluster.lab"}}
	n.Eventually(func() string {
		if !n.Get(record) || record.Spec.V4IPAddress != "10.30.0.2" || record.Spec.V6IPAddress != "fd00:30::1" || record.Spec.Subnet != "lab" {
			return fmt.Sprintf("the IP object is %+v", record.Spec)
		}
		return ""
	})
	n.run()
	if allocation, _ := n.process.Allocator.Lookup("u2o-interconnection/lab"); len(allocation.Addresses) != 2 || allocation.Addresses[0].String() != "10.30.0.2" {
		t.Errorf("after a restart the router has %v", allocation)
	}

	allocation, err := n.process.Allocator.Allocate("a.ns", ipam.Request{Subnet: "lab"})
	n.Must(err)
	n.Change(s, func() { s.Spec.U2OInterconnectionIP = allocation.Addresses[0].String() })
	n.Says(s, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "u2oInterconnectionIP is in use")
	n.routerPorts("[10.30.0.2/24 fd00:30::1/64]")
	n.Get(record)
	n.Change(record, func() { record.Finalizers = []string{"example.org/slow"} })
	n.Get(s)
	n.Change(s, func() { s.Spec.U2OInterconnectionIP = "10.30.0.77,fd00:30::77" })
	n.Says(s, kubeovnv1.ConditionReady, metav1.ConditionFalse, "IP u2o-interconnection.ovn-cluster.lab has a former address")
	n.routerPorts("[10.30.0.77/24 fd00:30::77/64]")
	if n.Get(s); s.Status.U2OInterconnectionIP != "10.30.0.77,fd00:30::77" {
		t.Errorf("the status says %s", s.Status.U2OInterconnectionIP)
	}
	n.Get(record)
	n.Change(record, func() { record.Finalizers = nil })
	n.change(s, func() { s.Spec.U2OInterconnectionIP = "10.30.0.77" })
	n.Eventually(func() string {
		if n.Get(s); !strings.HasPrefix(s.Status.U2OInterconnectionIP, "10.30.0.77,fd00:30::") {
			return s.Status.U2OInterconnectionIP
		}
		return ""
	})
	n.change(s, func() { s.Spec.U2OInterconnectionIP = "" })
	n.Rests("subnet")
	if n.Get(s); !strings.HasPrefix(s.Status.U2OInterconnectionIP, "10.30.0.77,") {
		t.Errorf("without an address in the spec the router moves to %s", s.Status.U2OInterconnectionIP)
	}

	// No host of the physical network has an address of the router.
	n.Change(s, func() { s.Spec.U2OInterconnectionIP = "10.30.0.1" })
	n.Says(s, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "u2oInterconnectionIP 10.30.0.1 is the address of node n1: choose another one")
	n.change(s, func() { s.Spec.U2OInterconnectionIP = "" })
	n.ignored(n.node("n2", "10.30.0.77"), "InternalIP 10.30.0.77 is ignored: "+translate.InterconnectionHolder("lab")+" in subnet lab has it: give the node another address")
	if n.Get(s); !strings.HasPrefix(s.Status.U2OInterconnectionIP, "10.30.0.77,") {
		t.Errorf("the router gives way to node n2, and has %s", s.Status.U2OInterconnectionIP)
	}

	n.change(s, func() { s.Spec.U2OInterconnection = false })
	n.routerPorts()
	n.Gone(record)
	if n.Get(s); s.Status.U2OInterconnectionIP != "" || s.Status.U2OInterconnectionVPC != "" {
		t.Errorf("status is %+v", s.Status)
	}
	n.change(s, func() { s.Spec.U2OInterconnection = true })
	n.process.Allocator.Release("a.ns")
	n.Delete(s)
	n.Gone(s)
	n.Gone(record)
}

func TestARunningSubnetPrecedesAnUnderlaySubnetThatGetsARouterPort(t *testing.T) {
	n := start(t)
	n.vlan("v", 30)
	n.provider("n1")
	lab := underlay("lab", "10.30.0.0/24", "10.30.0.254", "v")
	n.Create(lab)
	n.Ready(lab)
	shop := n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.30.0.0/24"}) // has the same age, or is younger
	overlaps := func(change func(*kubeovnv1.SubnetSpec)) {
		t.Helper()
		n.Get(lab)
		n.Change(lab, func() { change(&lab.Spec) })
		n.Says(lab, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "overlaps with 10.30.0.0/24 of subnet shop")
		n.Rests("subnet")
		n.Ready(shop)
	}
	overlaps(func(s *kubeovnv1.SubnetSpec) { s.LogicalGateway = true })
	overlaps(func(s *kubeovnv1.SubnetSpec) { s.LogicalGateway, s.U2OInterconnection = false, true })
	n.Get(shop)
	n.Change(shop, func() { shop.Spec.MTU = 1300 })
	n.Ready(shop)
	n.routerPorts()
	n.localnets("localnet.lab net1 30")
	n.Delete(shop)
	n.Ready(lab)
	n.routerPorts("10.30.0.1/24")
}

func TestAnUnderlaySubnetOfACustomVpc(t *testing.T) {
	n := start(t)
	n.vlan("v", 30)
	n.provider("n1")
	n.host("n1", "10.30.0.1")
	n.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}})
	s := underlay("lab", "10.30.0.0/24,fd00:30::/64", "10.30.0.254,fd00:30::fe", "v")
	s.Spec.Vpc = "tenant"
	n.Create(s)
	n.Ready(s)
	n.localnets("localnet.lab net1 30")
	n.rows("Logical_Router_Port", "name", "ovn-cluster-join", "ovn-cluster-ovn-default")

	n.change(s, func() { s.Spec.U2OInterconnection = true })
	n.rows("Logical_Router_Port", "name", "ovn-cluster-join", "ovn-cluster-ovn-default", "tenant-lab")
	n.hosts("n1")
	n.Eventually(func() string {
		if n.Get(s); s.Status.U2OInterconnectionVPC != "tenant" || !strings.HasPrefix(s.Status.U2OInterconnectionIP, "10.30.0.2,") {
			return fmt.Sprintf("the status is %+v", s.Status)
		}
		return ""
	})
	for _, row := range n.Database.Rows("Logical_Router_Policy") { // nodes are in the default VPC
		if match := fmt.Sprint(row["match"]); strings.Contains(match, "10.30.0.0/24") && strings.Contains(match, "$") {
			t.Errorf("policy %s", match)
		}
	}

	n.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant2"}})
	record := func(vpc string) *kubeovnv1.IP {
		return &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "u2o-interconnection." + vpc + ".lab"}}
	}
	if !n.Get(record("tenant")) {
		t.Error("the router has no IP object")
	}
	n.change(s, func() { s.Spec.Vpc = "tenant2" })
	n.Gone(record("tenant"))
	n.Eventually(func() string {
		if n.Get(s); s.Status.U2OInterconnectionVPC != "tenant2" || !n.Get(record("tenant2")) {
			return "the router of the other VPC has no IP object"
		}
		return ""
	})
	n.change(s, func() { s.Spec.Vpc, s.Spec.U2OInterconnection = "tenant", false }) // both at once
	n.Gone(record("tenant2"))
	n.change(s, func() { s.Spec.U2OInterconnection = true })

	// The pods of both are on one physical network.
	other := underlay("other", "10.30.0.128/25", "10.30.0.254", "v")
	n.Create(other)
	n.Says(other, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "of subnet lab on Vlan v")
	overlay := n.ready("overlay", kubeovnv1.SubnetSpec{CIDRBlock: "10.30.0.64/26"})
	n.change(s, func() { s.Spec.U2OInterconnection, s.Spec.LogicalGateway = false, true })
	n.Ready(s)
	n.Ready(overlay)
	n.Get(s)
	n.Delete(s)
	n.Gone(s)
	n.Ready(other)
}
