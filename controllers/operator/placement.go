// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/raft"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/k8s"
)

// placeDatabases records the node that creates each database before anything runs there, and ends the pass so that the
// record is written. The status comes first because members and clients read it: members for their permissions, clients
// for the addresses.
func (r *Reconciler) placeDatabases(_ context.Context, p *pass) error {
	recorded := false
	for _, db := range []render.Database{render.Northbound, render.Southbound} {
		status := p.database(db)
		if (status.BootstrapNode != "" || len(status.Members) > 0) && !p.neverCreated(status) {
			continue
		}
		placement := p.cluster.Spec.Central.Placement
		node := p.chooseNode(nil)
		if node == nil {
			return &halt{reason: "NoNodeForDatabases", degraded: true, message: fmt.Sprintf(
				"no usable node matches %q: label a node, or change spec.central.nodeSelector; a usable node answers, is not cordoned, has an "+
					"InternalIP, and has only taints that the databases tolerate (spec.central.tolerations adds some)",
				placement.Selector())}
		}
		status.BootstrapNode = node.Name
		status.Members = []v1alpha1.DatabaseMember{{Node: node.Name, Address: k8s.InternalIPs(node)[0].String()}}
		recorded = true
	}
	if recorded {
		return &halt{reason: "PlacingDatabases", message: "the nodes that create the databases were chosen"}
	}
	p.cluster.Status.Clients = clientAddresses(p.nodes, p.cluster.Spec, p.cluster.Status)
	p.config.NorthboundNodes = memberNodes(p.cluster.Status.Northbound)
	p.config.SouthboundNodes = memberNodes(p.cluster.Status.Southbound)
	return nil
}

// neverCreated reports whether the node chosen to create a database was deleted before it reported the cluster ID. No
// client can have used a database without a recorded ID.
func (p *pass) neverCreated(status *v1alpha1.DatabaseStatus) bool {
	return status.ClusterID == "" && !status.Recovering() && p.node(status.BootstrapNode) == nil
}

// memberNodes returns the nodes that hold the data of a database.
func memberNodes(db v1alpha1.DatabaseStatus) []string {
	if len(db.Members) == 0 {
		return []string{db.BootstrapNode}
	}
	nodes := make([]string, 0, len(db.Members))
	for _, m := range db.Members {
		nodes = append(nodes, m.Node)
	}
	return nodes
}

// chooseNode returns the oldest node of the placement on which a member can start now, or nil. Nodes that hold a member
// or have the address of one are excluded. The choice is stable, so that a re-created installation finds its data.
func (p *pass) chooseNode(members []v1alpha1.DatabaseMember) *corev1.Node {
	var candidates []*corev1.Node
	placement := p.cluster.Spec.Central.Placement
	for _, n := range p.matching(placement) {
		taken := slices.ContainsFunc(members, func(d v1alpha1.DatabaseMember) bool {
			return d.Node == n.Name || p.node(d.Node) != nil && slices.Contains(k8s.InternalIPs(n), raft.AddressOf(d))
		})
		if p.usable(n, render.MemberTolerations(placement)) && !taken {
			candidates = append(candidates, n)
		}
	}
	if len(candidates) == 0 {
		return nil
	}
	return slices.MinFunc(candidates, func(a, b *corev1.Node) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}

// matching returns the nodes of a placement, in any state.
func (p *pass) matching(placement v1alpha1.Placement) (nodes []*corev1.Node) {
	selector := placement.Selector()
	for i := range p.nodes {
		if selector.Matches(labels.Set(p.nodes[i].Labels)) {
			nodes = append(nodes, &p.nodes[i])
		}
	}
	return nodes
}

// usable reports whether a new pod with these tolerations can start on a node now.
func (p *pass) usable(n *corev1.Node, tolerations []corev1.Toleration) bool {
	return answers(n) && n.DeletionTimestamp.IsZero() && !n.Spec.Unschedulable && len(k8s.InternalIPs(n)) > 0 && !slices.Contains(p.unfit, n.Name) &&
		!slices.ContainsFunc(n.Spec.Taints, func(taint corev1.Taint) bool { return excludes(taint, tolerations) })
}

// excludes reports whether a taint keeps a pod with these tolerations from a node.
func excludes(taint corev1.Taint, tolerations []corev1.Toleration) bool {
	return taint.Effect != corev1.TaintEffectPreferNoSchedule &&
		!slices.ContainsFunc(tolerations, func(t corev1.Toleration) bool { return t.ToleratesTaint(logr.Discard(), &taint, false) })
}

// silent reports whether a node exists and its kubelet does not answer.
func silent(n *corev1.Node) bool { return n != nil && !answers(n) }

// answers reports whether the node's kubelet posts its status. It accepts nodes that are not ready, because no node is
// ready before its network works.
func answers(n *corev1.Node) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status != corev1.ConditionUnknown
		}
	}
	return false
}
