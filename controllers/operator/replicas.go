// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/database"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/k8s"
)

const (
	// redundantMembers is the number of members of a database that survives the loss of one.
	redundantMembers = 3
	// redundantPods is the number of pods of northd and of kube-ovn-controller: one that works and one on standby.
	redundantPods = 2
)

// deriveReplicas sets the numbers of replicas that the spec leaves unset, and reports all of them in the status. Later phases read them from
// the configuration of the pass.
func (r *Reconciler) deriveReplicas(_ context.Context, p *pass) error {
	spec, before := &p.config.Spec, p.before.Status.Replicas
	recorded := 0
	for _, db := range render.Databases {
		recorded = max(recorded, len(db.Of(&p.cluster.Status).Members))
	}
	members := p.places(spec.Central.Placement, render.MemberTolerations)
	switch {
	case spec.Central.Replicas == 0:
		spec.Central.Replicas = members.members(recorded)
	case spec.Central.Replicas == 1 && members.usable >= redundantMembers:
		p.Advise(fmt.Sprintf("each database has one member, and %d nodes can run members: set spec.central.replicas to %d to survive the loss of a node",
			members.usable, redundantMembers))
	}
	if spec.Central.NorthdReplicas == 0 {
		spec.Central.NorthdReplicas = p.places(spec.Central.Placement, render.Tolerations).pods(before.Northd)
	}
	if spec.Controller.Replicas == 0 {
		spec.Controller.Replicas = p.places(spec.Controller.Placement, render.Tolerations).pods(before.Controller)
	}
	p.cluster.Status.Replicas = v1alpha1.EffectiveReplicas{
		Central: spec.Central.Replicas, Northd: spec.Central.NorthdReplicas, Controller: spec.Controller.Replicas,
	}
	return nil
}

// places counts the nodes of a placement, by their addresses: nodes with the same address count as one.
type places struct {
	// matching nodes in any state, and those on which a new pod can start now.
	matching, usable int
}

func (p *pass) places(placement v1alpha1.Placement, tolerations func(v1alpha1.Placement) []corev1.Toleration) places {
	matching, usable := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	nodes := p.Matching(placement)
	for _, n := range nodes {
		if addresses := k8s.InternalIPs(n); len(addresses) > 0 {
			matching[addresses[0]] = true
		}
	}
	for _, n := range observed.Usable(nodes, tolerations(placement)) {
		if !slices.Contains(p.unfit, n.Name) {
			usable[k8s.InternalIPs(n)[0]] = true
		}
	}
	return places{matching: len(matching), usable: len(usable)}
}

// members returns the number of members of each database when this many are recorded. It is never lower: the loss of nodes must not remove
// members.
func (n places) members(recorded int) int32 {
	if n.usable >= redundantMembers {
		return max(redundantMembers, database.OddMembers(recorded))
	}
	return database.OddMembers(recorded)
}

// pods returns the number of pods of a component that had this many. A node that only does not answer or is cordoned still counts for it:
// scaling down could stop the pod that works.
func (n places) pods(before int32) int32 {
	kept := min(int(before), n.matching)
	return int32(max(1, min(redundantPods, max(n.usable, kept))))
}
