// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egress_test

import (
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/egress"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

const dual = "10.17.0.0/24,fd00:10:17::/112"

func TestActiveBackupFollowsTheNodes(t *testing.T) {
	n := start(t, "n1", "n2")
	s := n.centralized("s", dual, "n2, n1", nil)
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.2", "ip6.src == fd00:10:17::/112 reroute fd00:100:64::2")
	n.status("s", "n2", egress.ReasonReady)

	second := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
	n.Get(second)
	before := n.process.Transactions()
	n.ready(second, corev1.ConditionUnknown)
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1", "ip6.src == fd00:10:17::/112 reroute fd00:100:64::1")
	n.status("s", "n1", egress.ReasonReady)
	n.Event(s, eventsv1.Event{Reason: egress.ReasonMoved})
	if sent := n.process.Transactions() - before; sent != 1 {
		t.Errorf("moving a gateway took %d transactions, want 1", sent)
	}

	n.ready(second, corev1.ConditionTrue)
	n.status("s", "n2", egress.ReasonReady)
	n.Change(second, func() { second.Spec.Unschedulable = true })
	n.status("s", "n1", egress.ReasonReady)

	first := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	n.Get(first)
	n.ready(first, corev1.ConditionFalse)
	n.status("s", "n2", egress.ReasonReady) // a cordoned node is better than no node
	n.ready(second, corev1.ConditionFalse)
	n.status("s", "n2", egress.ReasonNoActiveGateway)
	n.Event(s, eventsv1.Event{Reason: egress.ReasonNoActiveGateway})
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.2", "ip6.src == fd00:10:17::/112 reroute fd00:100:64::2") // the last next hop stays

	n.Delete(second)
	n.status("s", "", egress.ReasonNoActiveGateway)
	n.policies("ip4.src == 10.17.0.0/24 drop", "ip6.src == fd00:10:17::/112 drop")
	n.ready(first, corev1.ConditionTrue)
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1", "ip6.src == fd00:10:17::/112 reroute fd00:100:64::1")
}

func TestECMPAndSelectorsFollowLabels(t *testing.T) {
	n := start(t, "n1", "n2", "n3")
	n.centralized("s", "10.17.0.0/24", "", func(s *kubeovnv1.SubnetSpec) {
		s.EnableECMP = true
		s.GatewayNodeSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"edge": "yes"}}}
	})
	n.policies("ip4.src == 10.17.0.0/24 drop")
	n.status("s", "", egress.ReasonNoReadyGateway)
	nodes := map[string]*corev1.Node{}
	for _, name := range []string{"n3", "n1"} {
		o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Get(o)
		n.Change(o, func() { o.Labels = map[string]string{"edge": "yes"} })
		nodes[name] = o
	}
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1,100.64.0.3")
	n.status("s", "n1,n3", egress.ReasonReady)
	n.ready(nodes["n1"], corev1.ConditionUnknown)
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.3")
	n.ready(nodes["n1"], corev1.ConditionTrue)
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1,100.64.0.3")
	n.Get(nodes["n3"])
	n.Change(nodes["n3"], func() { nodes["n3"].Labels = nil })
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1")
}

func TestAGatewayChangesAndGoes(t *testing.T) {
	n := start(t, "n1", "n2")
	s := n.centralized("s", "10.17.0.0/24", "n1", nil)
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1")
	n.change(s, func(s *kubeovnv1.SubnetSpec) { s.GatewayType = kubeovnv1.GatewayDistributed })
	n.policies()
	n.status("s", "", "")
	n.Event(s, eventsv1.Event{Type: corev1.EventTypeNormal, Reason: egress.ReasonTypeChanged, Note: "from centralized to distributed"})
	n.change(s, func(s *kubeovnv1.SubnetSpec) { s.GatewayType, s.GatewayNode = kubeovnv1.GatewayCentralized, "n2,n1" })
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.2")
	n.Event(s, eventsv1.Event{Type: corev1.EventTypeNormal, Reason: egress.ReasonTypeChanged, Note: "from distributed to centralized"})
	n.change(s, func(s *kubeovnv1.SubnetSpec) { s.GatewayNode, s.EnableECMP = "n1,n2", true })
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1,100.64.0.2")
	n.Event(s, eventsv1.Event{Type: corev1.EventTypeNormal, Reason: egress.ReasonNodeChanged, Note: `from "n2,n1" to "n1,n2"`})

	// An invalid spec does not change the policies. The only worker has processed it when the policy of a later subnet exists.
	wrong := s.DeepCopy() // a copy: the test world uses the specs of the subnets that it created
	n.Get(wrong)
	n.Change(wrong, func() { wrong.Spec.CIDRBlock = "10.18.0.0/24" })
	marker := n.centralized("marker", "10.19.0.0/24", "n1", nil)
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1,100.64.0.2", "ip4.src == 10.19.0.0/24 reroute 100.64.0.1")
	n.Get(marker)
	n.Change(marker, func() { marker.Finalizers = nil })
	n.Delete(marker)
	n.change(s, func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = "10.17.0.0/24" })
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1,100.64.0.2")

	n.change(s, func(s *kubeovnv1.SubnetSpec) { s.GatewayNode = "n9" })
	n.policies("ip4.src == 10.17.0.0/24 drop")
	n.change(s, func(s *kubeovnv1.SubnetSpec) { s.GatewayNode = "" })
	n.status("s", "", egress.ReasonNoReadyGateway)

	n.Get(s)
	n.Change(s, func() { s.Finalizers = nil })
	n.Delete(s)
	n.policies()
}

// A user changes a new subnet after its policies are committed and before its status is written. The patch of the status conflicts with the
// change, which has its event nevertheless.
func TestAChangeDuringTheFirstPassIsReported(t *testing.T) {
	n := prepare(t, "n1")
	reached, proceed := make(chan struct{}), make(chan struct{})
	n.beforePatch = sync.OnceFunc(func() { close(reached); <-proceed })
	n.run()
	release := sync.OnceFunc(func() { close(proceed) })
	n.Cleanup(release)
	s := n.centralized("s", "10.17.0.0/24", "n1", nil)
	eventually.Wait{For: "the controller must write the status"}.Holds(n, func() bool {
		select {
		case <-reached:
			return true
		default:
			return false
		}
	})
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1")
	n.change(s, func(s *kubeovnv1.SubnetSpec) { s.GatewayType = kubeovnv1.GatewayDistributed })
	release()
	n.policies()
	n.Event(s, eventsv1.Event{Type: corev1.EventTypeNormal, Reason: egress.ReasonTypeChanged, Note: "from centralized to distributed"})
}

// While a spec is invalid, nodes act according to the last valid one, and so do the policies.
func TestAGatewayFailsOverWhileTheSpecIsInvalid(t *testing.T) {
	n := start(t, "n1", "n2")
	s := n.centralized("s", dual, "n1,n2", func(s *kubeovnv1.SubnetSpec) {
		s.ExternalEgressGateway, s.PolicyRoutingPriority, s.PolicyRoutingTableID = "192.0.2.1", 1000, 1000
	})
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1", "ip6.src == fd00:10:17::/112 reroute fd00:100:64::1")
	n.status("s", "n1", egress.ReasonReady) // a failover is reported if the status lists the node that is down
	other := n.Subnet("t", func(o *kubeovnv1.SubnetSpec) {
		o.CIDRBlock, o.ExternalEgressGateway, o.PolicyRoutingPriority, o.PolicyRoutingTableID = "10.20.0.0/24", "192.0.2.1", 1000, 1001
	}, n.process)

	wrong := s.DeepCopy() // a copy: the test world uses the specs of the subnets that it created
	n.Get(wrong)
	n.Change(wrong, func() {
		wrong.Spec.CIDRBlock, wrong.Spec.GatewayType, wrong.Spec.GatewayNode = "10.18.0.0/24,fd00:10:18::/112", kubeovnv1.GatewayDistributed, "n1:1.2"
		wrong.Spec.PolicyRoutingTableID = 1001
	})
	// The only worker has processed it when the policy of a later subnet exists.
	n.centralized("marker", "10.19.0.0/24", "n2", nil)
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1", "ip4.src == 10.19.0.0/24 reroute 100.64.0.2",
		"ip6.src == fd00:10:17::/112 reroute fd00:100:64::1")

	first := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	n.Get(first)
	n.ready(first, corev1.ConditionUnknown)
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.2", "ip4.src == 10.19.0.0/24 reroute 100.64.0.2",
		"ip6.src == fd00:10:17::/112 reroute fd00:100:64::2")
	n.status("s", "n2", egress.ReasonReady)
	n.Event(s, eventsv1.Event{Reason: egress.ReasonMoved})
	n.status("t", "", "") // s still has table 1000
	n.change(other, func(o *kubeovnv1.SubnetSpec) { o.PolicyRoutingTableID = 1000 })
	n.status("t", "", egress.ReasonTableConflict)
}

func TestRestartAndDrift(t *testing.T) {
	n := start(t, "n1", "n2")
	n.centralized("s", "10.17.0.0/24", "n1", nil)
	gone := n.centralized("gone", "10.18.0.0/24", "n1", nil)
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1", "ip4.src == 10.18.0.0/24 reroute 100.64.0.1")
	n.process.Stop()
	n.Delete(gone)
	n.run()
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1")

	for uuid, row := range n.Database.Rows("Logical_Router_Policy") {
		if fmt.Sprint(row["priority"]) == "29010" { // another client changes the next hop
			n.Database.Transact(nbtest.Op{
				"op": "update", "table": "Logical_Router_Policy", "where": []any{[]any{"_uuid", "==", []any{"uuid", uuid}}},
				"row": map[string]any{"nexthops": "192.0.2.1"},
			})
		}
	}
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1")
}

// A kubelet can write the annotations of its Node. Traffic goes to the address that the node has on the join subnet.
func TestAGatewayUsesTheAllocationOfItsNode(t *testing.T) {
	n := start(t, "n1", "n2")
	s := n.centralized("s", "10.17.0.0/24", "n1", nil)
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	n.Get(node)
	n.Change(node, func() { node.Annotations[kubeovnv1.AnnotationIPAddress.Key()] = "100.64.0.2,fd00:100:64::2" })
	n.change(s, func(spec *kubeovnv1.SubnetSpec) { spec.CIDRBlock = dual })
	n.policies("ip4.src == 10.17.0.0/24 reroute 100.64.0.1", "ip6.src == fd00:10:17::/112 reroute fd00:100:64::1")
}
