// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/node"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
)

// connected waits until a node's annotations contain a port, and returns them in typed form.
func (n *network) connected(o *corev1.Node) kubeovnv1.PodNetwork {
	n.Helper()
	var network kubeovnv1.PodNetwork
	n.Eventually(func() string {
		n.Get(o)
		var err error
		network, err = kubeovnv1.ParsePodNetwork(o.Annotations)
		if err != nil || !network.Allocated {
			return fmt.Sprintf("node %s has annotations %v (%v)", o.Name, o.Annotations, err)
		}
		return ""
	})
	return network
}

// nodePolicies waits until the router policies towards nodes are these.
func (n *network) nodePolicies(want ...string) {
	n.Helper()
	n.Eventually(func() string {
		var got []string
		for _, row := range n.Database.Rows("Logical_Router_Policy") {
			if fmt.Sprint(row["priority"]) == "30000" {
				got = append(got, fmt.Sprint(row["match"])+" via "+strings.Join(row.Strings("nexthops"), ","))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Sprintf("policies to nodes are %q, want %q", got, want)
		}
		return ""
	})
}

func TestANodeIsCreatedChangedAndDeleted(t *testing.T) {
	n := start(t)
	o := n.node("n1", "192.0.2.11", "2001:db8::11")
	got := n.connected(o)
	if len(got.Addresses) != 2 || got.Addresses[0].String() != "100.64.0.2" || got.Addresses[1].String() != "fd00:100:64::2" ||
		got.LogicalSwitch != "join" || got.MAC == nil || len(got.CIDRs) != 2 || len(got.Gateways) != 2 {
		t.Errorf("the node got %+v", got)
	}
	if port, chassis := o.Annotations["ovn.kubernetes.io/port_name"], o.Annotations["ovn.kubernetes.io/chassis"]; port != "node-n1" || chassis != "n1" {
		t.Errorf("port %q, chassis %q", port, chassis)
	}
	ip := &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "node-n1"}}
	n.Eventually(func() string {
		if !n.Get(ip) || ip.Spec.IPAddress != "100.64.0.2,fd00:100:64::2" || ip.Spec.V4IPAddress != "100.64.0.2" || ip.Spec.NodeName != "n1" {
			return fmt.Sprintf("IP object %+v", ip.Spec)
		}
		return ""
	})
	n.rows("Logical_Switch_Port", "addresses", got.MAC.String()+" 100.64.0.2 fd00:100:64::2", "router", "router")
	n.nodePolicies("ip4.dst == 192.0.2.11 via 100.64.0.2", "ip6.dst == 2001:db8::11 via fd00:100:64::2")
	n.nodeSets("[]", "[]") // one per family
	n.Rests("node")
	n.Recreates(ip)
	n.RestoresRows("Node//n1")

	// The first claim of a node stays its address. An administrator accepts another one by the deletion of the IP object.
	n.setAddresses(o, "192.0.2.12")
	const changed = "InternalIP 192.0.2.12 is ignored, because the node joined with 192.0.2.11,2001:db8::11: if its address has changed, delete the IP object node-n1"
	n.ignored(o, changed)
	mistakes.Sees(t, 51, changed)
	n.nodePolicies("ip4.dst == 192.0.2.11 via 100.64.0.2", "ip6.dst == 2001:db8::11 via fd00:100:64::2")
	n.Measures(1, "kiln_node_ignored_addresses", "node", "n1")
	n.Delete(ip)
	n.nodePolicies("ip4.dst == 192.0.2.12 via 100.64.0.2")
	n.Measures(0, "kiln_node_ignored_addresses", "node", "n1")

	n.Get(o)
	before := n.process.Transactions()
	n.Change(o, func() { o.Annotations = nil })
	if again := n.connected(o); again.Addresses[0] != got.Addresses[0] || n.process.Transactions() != before {
		t.Errorf("lost annotations gave the node %v and %d transactions", again.Addresses, n.process.Transactions()-before)
	}

	n.Delete(o)
	n.nodePolicies()
	n.Gone(ip)
	n.nodeSets()
	n.Eventually(func() string {
		if allocation, held := n.process.Allocator.Lookup(translate.NodePort("n1")); held {
			return fmt.Sprintf("the node still holds %v", allocation)
		}
		return ""
	})
}

func TestNodesKeepTheirAddressesOverARestart(t *testing.T) {
	n := start(t)
	var nodes []*corev1.Node
	addresses := map[string]string{}
	for _, name := range []string{"n1", "n2", "n3"} {
		o := n.node(name, "192.0.2.1"+name[1:])
		nodes = append(nodes, o)
		addresses[name] = fmt.Sprint(n.connected(o).Addresses)
	}
	n.Delete(nodes[0])
	n.nodeSets("[]", "[]", "[]", "[]")
	n.run()
	late := n.node("n0", "192.0.2.10")
	n.connected(late)
	for _, o := range nodes[1:] {
		if got := fmt.Sprint(n.connected(o).Addresses); got != addresses[o.Name] {
			t.Errorf("node %s had %s, has %s", o.Name, addresses[o.Name], got)
		}
	}
}

func TestANodeWithoutAnAddressWaitsForOne(t *testing.T) {
	n := start(t)
	n.condition("join", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	join := n.subnet("join")
	n.Change(join, func() {
		join.Spec.CIDRBlock, join.Spec.Gateway, join.Spec.ExcludeIPs = "100.64.0.0/30", "100.64.0.1", nil
	})
	n.condition("join", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	first := n.node("n1", "192.0.2.11")
	n.connected(first)
	second := n.node("n2", "192.0.2.12")
	n.Event(second, eventsv1.Event{Reason: node.ReasonNoAddress})
	n.Delete(first)
	if got := n.connected(second); got.Addresses[0].String() != "100.64.0.2" {
		t.Errorf("the waiting node got %v", got.Addresses)
	}
}

func TestNodesFollowTheJoinSubnet(t *testing.T) {
	n := start(t)
	o := n.node("n1", "192.0.2.11")
	n.connected(o)
	join := n.subnet("join")
	n.Change(join, func() {
		join.Spec.CIDRBlock, join.Spec.Gateway, join.Spec.ExcludeIPs = "100.80.0.0/16,fd00:100:64::/112", "100.80.0.1,fd00:100:64::1", nil
	})
	n.nodePolicies("ip4.dst == 192.0.2.11 via 100.80.0.2")
	n.rows("Logical_Router_Static_Route", "nexthop", "100.80.0.1", "fd00:100:64::1")
	n.Eventually(func() string {
		if got := fmt.Sprint(n.connected(o).Addresses); got != "[100.80.0.2 fd00:100:64::2]" {
			return "the node has " + got
		}
		return ""
	})
}

func TestANodeWaitsForAPodThatHasTheNameOfItsPort(t *testing.T) {
	n := start(t)
	n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"})
	const port = "node-a.shop" // of pod node-a in namespace shop
	pod, err := n.process.Allocator.Allocate(port, ipam.Request{Subnet: "shop"})
	n.Must(err)
	o := n.node("a.shop", "192.0.2.11")
	n.Event(o, eventsv1.Event{Reason: node.ReasonNoAddress})
	if holder := n.process.Allocator.Holder("shop", pod.Addresses[0]); holder != port {
		t.Errorf("the pod's address is %q's", holder)
	}
	n.process.Allocator.Release(port)
	n.connected(o)
}

// ignored waits for the event on a node with an address that is not used.
func (n *network) ignored(o *corev1.Node, note string) {
	n.Helper()
	n.Event(o, eventsv1.Event{Type: "Warning", Reason: node.ReasonAddressIgnored, Note: note})
}

// A kubelet can write any address to its Node. None of them becomes a policy of the router, or makes a subnet invalid.
func TestANodeGetsNoAddressOfOthers(t *testing.T) {
	n := start(t)
	n.vlan("v", 0)
	n.ready("office", kubeovnv1.SubnetSpec{CIDRBlock: "10.30.0.0/24", Gateway: "10.30.0.254", Vlan: "v", Vips: []string{"10.30.0.20"}})
	_, err := n.process.Allocator.Allocate("pod.office", ipam.Request{Subnet: "office", Addresses: []netip.Addr{netip.MustParseAddr("10.30.0.9")}})
	n.Must(err)
	n.connected(n.node("first", "192.0.2.1", "2001:db8::1"))
	policies := []string{"ip4.dst == 192.0.2.1 via 100.64.0.2", "ip6.dst == 2001:db8::1 via fd00:100:64::2"}
	stolen := n.node("stolen")
	n.connected(stolen)
	for _, c := range []struct{ address, why string }{
		{"10.16.0.77", "it is in subnet ovn-default: give the node an address outside"},
		{"fd00:10:16::77", "it is in subnet ovn-default: give the node an address outside"},
		{"100.64.0.9", "it is in subnet join: give the node an address outside"},
		{"10.96.0.1", "it is in 10.96.0.0/12, a CIDR of Services: give the node an address outside"},
		{"fd00:10:96::1", "it is in fd00:10:96::/108, a CIDR of Services: give the node an address outside"},
		{"192.0.2.1", "node first has it: give each node its own address, or delete the Node that no longer exists"},
		{"2001:db8::1", "node first has it: give each node its own address, or delete the Node that no longer exists"},
		{"10.30.0.254", "it is the gateway of subnet office: give the node another address"},
		{"10.30.0.9", "pod.office in subnet office has it: give the node another address"},
		{"10.30.0.20", "it is one of the vips of subnet office: give the node another address"},
		{"169.254.169.254", "it is not a unicast address of a network: correct --node-ip of the kubelet"},
		{"127.0.0.1", "it is not a unicast address of a network: correct --node-ip of the kubelet"},
	} {
		n.advance(time.Hour)
		n.setAddresses(stolen, c.address)
		n.ignored(stolen, "InternalIP "+c.address+" is ignored: "+c.why)
		n.nodePolicies(policies...)
	}
	for _, s := range []string{"ovn-default", "join", "office"} {
		n.condition(s, kubeovnv1.ConditionValidated, metav1.ConditionTrue)
	}
	n.nodeSets("[]", "[]", "[]", "[]")

	// Nodes may be in a physical network, and have addresses of custom VPCs. The first InternalIP of each family counts.
	n.setAddresses(stolen, "10.30.0.10", "8.8.8.8", "2001:db8::2", "2001:db8::8888")
	n.nodePolicies(slices.Sorted(slices.Values(append(policies, "ip4.dst == 10.30.0.10 via 100.64.0.3", "ip6.dst == 2001:db8::2 via fd00:100:64::3")))...)
	n.advance(time.Hour)
	n.setAddresses(stolen, "8.8.8.8", "10.30.0.10", "2001:db8::2")
	n.ignored(stolen, "InternalIP 8.8.8.8 is ignored, because the node joined with 10.30.0.10,2001:db8::2: if its address has changed, delete the IP object node-stolen")
	n.run()
	n.setAddresses(stolen, "192.0.2.1")
	n.touch(stolen)
	n.nodePolicies(slices.Sorted(slices.Values(append(policies, "ip4.dst == 10.30.0.10 via 100.64.0.3", "ip6.dst == 2001:db8::2 via fd00:100:64::3")))...)
}

// A machine that is installed again under another name has the address of a Node that still exists.
func TestANodeGetsTheAddressOfASilentOne(t *testing.T) {
	n := start(t)
	before := n.node("before", "192.0.2.1")
	n.setReady(before, corev1.ConditionTrue)
	n.connected(before)
	after := n.node("after", "192.0.2.1")
	n.setReady(after, corev1.ConditionTrue)
	n.connected(after)
	n.ignored(after, "InternalIP 192.0.2.1 is ignored: node before has it: give each node its own address, or delete the Node that no longer exists")
	n.nodePolicies("ip4.dst == 192.0.2.1 via 100.64.0.2")

	n.setReady(before, corev1.ConditionUnknown)
	n.advance(4 * time.Minute)
	n.touch(after)
	n.nodePolicies("ip4.dst == 192.0.2.1 via 100.64.0.2")
	n.advance(time.Minute)
	n.touch(after)
	n.nodePolicies("ip4.dst == 192.0.2.1 via 100.64.0.3")

	n.setReady(before, corev1.ConditionTrue)
	n.touch(before)
	n.ignored(before, "InternalIP 192.0.2.1 is ignored: node after has it: give each node its own address, or delete the Node that no longer exists")
	n.nodePolicies("ip4.dst == 192.0.2.1 via 100.64.0.3")

	// The node that lost its address may not claim others instead.
	n.advance(time.Hour)
	n.setAddresses(before, "8.8.8.8")
	n.ignored(before, "InternalIP 8.8.8.8 is ignored, because the node joined with 192.0.2.1: if its address has changed, delete the IP object node-before")
	n.nodePolicies("ip4.dst == 192.0.2.1 via 100.64.0.3")
	n.Delete(after)
	n.nodePolicies("ip4.dst == 192.0.2.1 via 100.64.0.2")
}

// A subnet that is applied stays valid, whatever host gets an address in it. A subnet that grows over a host does not.
func TestAHostMakesNoAppliedSubnetInvalid(t *testing.T) {
	n := start(t)
	n.ready("shop", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"})
	n.Joined("inside", "", "10.20.0.9") // recorded by a version that believed kubelets
	n.Create(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "api", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.20.0.10"}}},
	})
	n.host("outside", "10.20.1.9")
	s := n.subnet("shop")
	n.Change(s, func() { s.Spec.NATOutgoing = true })
	n.condition("shop", kubeovnv1.ConditionValidated, metav1.ConditionTrue)
	n.Change(s, func() { s.Spec.CIDRBlock, s.Spec.Gateway, s.Spec.ExcludeIPs = "10.20.0.0/23", "10.20.0.1", nil })
	if c := n.condition("shop", kubeovnv1.ConditionValidated, metav1.ConditionFalse); !strings.Contains(c.Message, "holds 10.20.1.9, the address of node outside") {
		t.Errorf("the larger CIDR: %s", c.Message)
	}
}

// A kubelet that changes its addresses all the time causes no writes, and no more than an event a minute.
func TestChangingAddressesOfANodeCauseNoWork(t *testing.T) {
	n := start(t)
	o := n.node("toggling", "192.0.2.1")
	n.connected(o)
	n.nodePolicies("ip4.dst == 192.0.2.1 via 100.64.0.2")
	before, writes := n.process.Transactions(), n.process.Writes("PATCH", "/ips/")
	for i := range 100 {
		n.setAddresses(o, fmt.Sprintf("198.51.100.%d", i+1))
	}
	n.ignored(o, "InternalIP 198.51.100.1 is ignored, because the node joined with 192.0.2.1: if its address has changed, delete the IP object node-toggling")
	n.nodePolicies("ip4.dst == 192.0.2.1 via 100.64.0.2")
	if sent, patched := n.process.Transactions()-before, n.process.Writes("PATCH", "/ips/")-writes; sent > 0 || patched > 0 {
		t.Errorf("%d transactions and %d patches of IP objects", sent, patched)
	}
	var list eventsv1.EventList
	n.Must(n.Client.List(n.Context(), &list, client.InNamespace(metav1.NamespaceDefault)))
	about := slices.DeleteFunc(list.Items, func(e eventsv1.Event) bool {
		return e.Regarding.Name != "toggling" || e.Reason != node.ReasonAddressIgnored
	})
	if len(about) > 2 {
		t.Errorf("%d events", len(about))
	}
}
