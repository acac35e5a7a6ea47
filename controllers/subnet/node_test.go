// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/node"
	"github.com/kiln-net/kiln/internal/ipam"
	"github.com/kiln-net/kiln/internal/northbound/translate"
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

func TestANodeComesChangesAndGoes(t *testing.T) {
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

	n.setAddresses(o, "192.0.2.12")
	n.nodePolicies("ip4.dst == 192.0.2.12 via 100.64.0.2")

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
		if lease, held := n.process.Allocator.Lookup(translate.NodePort("n1")); held {
			return fmt.Sprintf("the node still holds %v", lease)
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
