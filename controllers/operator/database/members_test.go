// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package database

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/raft"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/controllers/operator/upgrade"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// addressed returns a node of the control plane that answers.
func addressed(name, address string) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.ControlPlaneLabel: ""}},
		Status: corev1.NodeStatus{
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// seeing returns the input of a pass that sees these nodes.
func seeing(now time.Time, nodes ...corev1.Node) *Input {
	return &Input{Input: upgrade.Input{OVNCluster: &v1alpha1.OVNCluster{}, Report: status.NewReport(&observed.Cluster{Now: now, Nodes: nodes})}}
}

func of(db render.Database, in *Input) *run {
	return (&Runner{Replacer: &upgrade.Replacer{}}).of(in, db)
}

// TestANodeKeepsItsMemberWhileItHasShortlyNoAddress takes the InternalIP of a node away, as an external cloud provider does for some seconds.
func TestANodeKeepsItsMemberWhileItHasShortlyNoAddress(t *testing.T) {
	now := time.Now()
	r := &Runner{}
	next := func(nodes ...corev1.Node) (raft.Step, *run) {
		p := r.of(seeing(now, nodes...), render.Northbound)
		r.NoteAddresses(p.Report.Cluster)
		db, reports, members := p.record, map[string]adminapi.Status{}, []adminapi.Member{}
		for i, name := range []string{"a", "b", "c"} {
			address := fmt.Sprintf("192.0.2.%d", i+1)
			db.Members = append(db.Members, v1alpha1.DatabaseMember{Node: name, Address: address, ServerID: "s" + name})
			members = append(members, adminapi.Member{ServerID: "s" + name, Address: "ssl:" + address + ":6643"})
		}
		for i, m := range db.Members {
			reports[m.Node] = adminapi.Status{
				ClusterID: "c", ServerID: m.ServerID, Address: members[i].Address, Connected: true, Members: members,
				Role: map[bool]string{true: adminapi.RoleLeader, false: "follower"}[i == 0],
			}
		}
		db.ClusterID, db.Leader = "c", "a"
		p.Config.Spec.Central.Replicas = 3
		p.reports = reports
		return p.membership().Next(), p
	}
	a, b, c := addressed("a", "192.0.2.1"), addressed("b", "192.0.2.2"), addressed("c", "192.0.2.3")
	without := *c.DeepCopy()
	without.Status.Addresses = nil
	if step, _ := next(a, b, c); step.Action != raft.ActionNone {
		t.Fatalf("with all addresses: %+v", step)
	}
	if step, p := next(a, b, without); step.Action != raft.ActionNone || !p.Report.Wake().Equal(now.Add(addressGrace)) {
		t.Errorf("without an address: %+v, next pass %s", step, p.Report.Wake())
	}
	now = now.Add(addressGrace - time.Second)
	if step, _ := next(a, b, without); step.Action != raft.ActionNone {
		t.Errorf("before the end of the grace: %+v", step)
	}
	next(a, b, c)
	now = now.Add(time.Minute)
	if step, _ := next(a, b, without); step.Action != raft.ActionNone {
		t.Errorf("a second time: %+v", step)
	}
	now = now.Add(addressGrace)
	if step, _ := next(a, b, without); step.Action != raft.ActionKick {
		t.Errorf("after the grace: %+v", step)
	}
	if step, _ := next(a, b); step.Action != raft.ActionKick {
		t.Errorf("a deleted node: %+v", step)
	}
	if step, _ := next(a, b, addressed("c", "192.0.2.9")); step.Action != raft.ActionKick {
		t.Errorf("another address: %+v", step)
	}
}

func TestNoTwoMembersHaveOneAddress(t *testing.T) {
	p := of(render.Northbound, seeing(time.Time{}, addressed("a", "192.0.2.1"), addressed("b", "192.0.2.1")))
	*p.record = v1alpha1.DatabaseStatus{ClusterID: "c", Leader: "a", Members: []v1alpha1.DatabaseMember{{Node: "a", Address: "192.0.2.1", ServerID: "s100"}}}
	p.Config.Spec.Central.Replicas = 3
	const raftAddress = "ssl:192.0.2.1:6643"
	p.reports = map[string]adminapi.Status{"a": {
		ClusterID: "c", ServerID: "s100", Address: raftAddress, Role: adminapi.RoleLeader, Connected: true,
		Members: []adminapi.Member{{ServerID: "s100", Address: raftAddress}},
	}}
	m := p.membership()
	if m.Free != nil {
		t.Errorf("a second member at its address goes to %s", m.Free.Name)
	}
	if at := m.Nodes[netip.MustParseAddr("192.0.2.1")]; at != "a" {
		t.Errorf("the member on a counts as the member of %s", at)
	}
	if step := m.Next(); step.Action != raft.ActionNone || !step.Stuck {
		t.Errorf("the next step: %+v", step)
	}
	p.Report.Nodes = p.Report.Nodes[1:] // a was b's former name
	p.reports = nil
	if m = p.membership(); m.Free == nil || m.Free.Name != "b" {
		t.Errorf("with a gone b is not free: %v", m.Free)
	}
}
