// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package database

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

func TestTheFirstDatabaseGoesToTheOldestUsableNode(t *testing.T) {
	node := func(name string, age int64, change func(*corev1.Node)) corev1.Node {
		n := corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, CreationTimestamp: metav1.Unix(1000-age, 0), Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""},
			},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}},
				Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
			},
		}
		if change != nil {
			change(&n)
		}
		return n
	}
	nodes := []corev1.Node{
		node("a", 50, nil),
		node("b", 50, nil),
		node("cordoned", 90, func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		node("never-heard", 90, func(n *corev1.Node) { n.Status.Conditions = nil }),
		node("silent", 90, func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }),
		node("without-address", 90, func(n *corev1.Node) { n.Status.Addresses = nil }),
		node("worker", 90, func(n *corev1.Node) { n.Labels = nil }),
	}
	p := seeing(time.Time{}, nodes...)
	if chosen := p.chooseNode(nil); chosen == nil || chosen.Name != "a" {
		t.Errorf("chose %v; want a", chosen)
	}
	if chosen := p.chooseNode([]v1alpha1.DatabaseMember{{Node: "a"}}); chosen == nil || chosen.Name != "b" {
		t.Errorf("next to a member on a it chose %v; want b", chosen)
	}
	p.Unfit = []string{"a"}
	if chosen := p.chooseNode(nil); chosen == nil || chosen.Name != "b" {
		t.Errorf("while a is unfit it chose %v; want b", chosen)
	}
	p.OVNCluster.Spec.Central.NodeSelector = map[string]string{"infra": "true"}
	if chosen := p.chooseNode(nil); chosen != nil {
		t.Errorf("without a match: %v", chosen)
	}
}

// TestARecreatedDatabaseKeepsItsMembers re-creates the OVNCluster of a database with three members while one node does not answer. The record
// has one member then, and the database lists three.
func TestARecreatedDatabaseKeepsItsMembers(t *testing.T) {
	for _, tt := range []struct {
		set    int32
		listed []string
		want   int32
	}{
		{0, []string{"ssl:192.0.2.1:6643", "ssl:192.0.2.2:6643", "ssl:192.0.2.3:6643"}, 3},
		{0, []string{"ssl:192.0.2.1:6643", "ssl:192.0.2.1:6643"}, 1},
		{1, []string{"ssl:192.0.2.1:6643", "ssl:192.0.2.2:6643", "ssl:192.0.2.3:6643"}, 1},
	} {
		p := of(render.Northbound, seeing(time.Time{}))
		p.OVNCluster.Spec.Central.Replicas = tt.set
		p.Config.Spec.Central.Replicas = 1
		p.OVNCluster.Status.Replicas.Central = 1
		p.OVNCluster.Status.Northbound.ClusterID = "n"
		var report adminapi.Status
		for i, address := range tt.listed {
			report.Members = append(report.Members, adminapi.Member{ServerID: fmt.Sprint(i), Address: address})
		}
		report.ClusterID = "s"
		p.reports = map[string]adminapi.Status{"n1": report}
		p.keepMembers()
		if got := p.Config.Spec.Central.Replicas; got != 1 {
			t.Errorf("a report of another cluster makes %d members", got)
		}
		report.ClusterID = "n"
		p.reports = map[string]adminapi.Status{"n1": report}
		p.keepMembers()
		if got := p.Config.Spec.Central.Replicas; got != tt.want || p.OVNCluster.Status.Replicas.Central != tt.want {
			t.Errorf("replicas %d in the spec, and the database lists %v: %d members, and the status has %d", tt.set, tt.listed, got, p.OVNCluster.Status.Replicas.Central)
		}
	}
}

func TestClientsAreTheNodesOfThePlacementsAndOfMembers(t *testing.T) {
	node := func(name, label string, addresses ...string) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{label: ""}}}
		for _, a := range addresses {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
		}
		return n
	}
	nodes := []corev1.Node{
		node("control", v1alpha1.ControlPlaneLabel, "192.0.2.1", "2001:db8::1"), node("infra", "infra", "192.0.2.5"), node("worker", "worker", "192.0.2.9"),
	}
	var spec v1alpha1.OVNClusterSpec
	spec.Controller.NodeSelector = map[string]string{"infra": ""}
	status := v1alpha1.OVNClusterStatus{Northbound: v1alpha1.DatabaseStatus{Members: []v1alpha1.DatabaseMember{
		{Node: "control", Address: "192.0.2.1"}, {Node: "gone", Address: "192.0.2.7"},
	}}}
	got := clientAddresses(&observed.Cluster{Nodes: nodes}, spec, status)
	if want := []string{"192.0.2.1", "192.0.2.5", "192.0.2.7", "2001:db8::1"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
