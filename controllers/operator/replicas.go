// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
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
	status := p.cluster.Status
	members := p.places(spec.Central.Placement, render.MemberTolerations)
	switch {
	case spec.Central.Replicas == 0:
		spec.Central.Replicas = members.members(max(len(status.Northbound.Members), len(status.Southbound.Members)))
	case spec.Central.Replicas == 1 && members.usable >= redundantMembers:
		p.advise(fmt.Sprintf("each database has one member, and %d nodes can run members: set spec.central.replicas to %d to survive the loss of a node",
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

// keepMembers raises a derived number of members to the number that a database already has. The record may have fewer: a re-created
// OVNCluster records the members of an existing database again.
func (p *pass) keepMembers(db render.Database, reports map[string]adminapi.Status) {
	if p.cluster.Spec.Central.Replicas != 0 {
		return
	}
	replicas := &p.config.Spec.Central.Replicas
	for _, report := range reports {
		if report.ClusterID != "" && report.ClusterID == p.database(db).ClusterID {
			addresses := map[string]bool{} // a member that joined again may be listed twice
			for _, server := range report.Members {
				addresses[server.Address] = true
			}
			*replicas = max(*replicas, oddMembers(len(addresses)))
		}
	}
	p.cluster.Status.Replicas.Central = *replicas
}

// places counts the nodes of a placement, by their addresses: nodes with the same address count as one.
type places struct {
	// matching nodes in any state, and those on which a new pod can start now.
	matching, usable int
}

func (p *pass) places(placement v1alpha1.Placement, tolerations func(v1alpha1.Placement) []corev1.Toleration) places {
	matching, usable := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, n := range p.matching(placement) {
		addresses := k8s.InternalIPs(n)
		if len(addresses) == 0 {
			continue
		}
		matching[addresses[0]] = true
		if p.usable(n, tolerations(placement)) {
			usable[addresses[0]] = true
		}
	}
	return places{matching: len(matching), usable: len(usable)}
}

// members returns the number of members of each database when this many are recorded. It is never lower: the loss of nodes must not remove
// members.
func (n places) members(recorded int) int32 {
	if n.usable >= redundantMembers {
		return max(redundantMembers, oddMembers(recorded))
	}
	return oddMembers(recorded)
}

// oddMembers returns the smallest allowed number of members that is not below n.
func oddMembers(n int) int32 {
	switch {
	case n <= 1:
		return 1
	case n <= 3:
		return 3
	}
	return 5
}

// pods returns the number of pods of a component that had this many. A node that only does not answer or is cordoned still counts for it:
// scaling down could stop the pod that works.
func (n places) pods(before int32) int32 {
	kept := min(int(before), n.matching)
	return int32(max(1, min(redundantPods, max(n.usable, kept))))
}
