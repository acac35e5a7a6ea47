// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package database

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/raft"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/internal/k8s"
)

// Place records the node that creates each database before anything runs there, and ends the pass so that the
// record is written. The status comes first because members and clients read it: members for their permissions, clients
// for the addresses. Afterwards it returns the nodes of the members of each database, by its Flag.
func Place(in *Input) (map[string][]string, error) {
	recorded, members := false, map[string][]string{}
	for _, db := range render.Databases {
		record := db.Of(&in.OVNCluster.Status)
		if record.BootstrapNode == "" && len(record.Members) == 0 || in.neverCreated(record) {
			node := in.chooseNode(nil)
			if node == nil {
				return nil, &status.Halt{Reason: "NoNodeForDatabases", Degraded: true, Message: fmt.Sprintf(
					"no usable node matches %q: label a node, or change spec.central.nodeSelector; a usable node answers, is not cordoned, has an "+
						"InternalIP, and has only taints that the databases tolerate (spec.central.tolerations adds some)",
					in.OVNCluster.Spec.Central.Selector())}
			}
			record.BootstrapNode = node.Name
			record.Members = []v1alpha1.DatabaseMember{{Node: node.Name, Address: k8s.InternalIPs(node)[0].String()}}
			recorded = true
		}
		members[db.Flag] = memberNodes(*record)
	}
	if recorded {
		return nil, &status.Halt{Reason: "PlacingDatabases", Message: "the nodes that create the databases were chosen"}
	}
	in.OVNCluster.Status.Clients = clientAddresses(in.Report.Cluster, in.OVNCluster.Spec, in.OVNCluster.Status)
	return members, nil
}

// neverCreated reports whether the node chosen to create a database was deleted before it reported the cluster ID. No
// client can have used a database without a recorded ID.
func (in *Input) neverCreated(record *v1alpha1.DatabaseStatus) bool {
	return record.ClusterID == "" && !record.Recovering() && in.Report.Node(record.BootstrapNode) == nil
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
func (in *Input) chooseNode(members []v1alpha1.DatabaseMember) *corev1.Node {
	placement := in.OVNCluster.Spec.Central.Placement
	candidates := slices.DeleteFunc(observed.Usable(in.Report.Matching(placement), render.MemberTolerations(placement)), func(n *corev1.Node) bool {
		return slices.Contains(in.Unfit, n.Name) || slices.ContainsFunc(members, func(d v1alpha1.DatabaseMember) bool {
			return d.Node == n.Name || in.Report.Node(d.Node) != nil && slices.Contains(k8s.InternalIPs(n), raft.AddressOf(d))
		})
	})
	if len(candidates) == 0 {
		return nil
	}
	return slices.MinFunc(candidates, func(a, b *corev1.Node) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}

// keepMembers raises a derived number of members to the number that a database already has. The record may have fewer: a re-created
// OVNCluster records the members of an existing database again.
func (p *run) keepMembers() {
	if p.OVNCluster.Spec.Central.Replicas != 0 {
		return
	}
	replicas := &p.Config.Spec.Central.Replicas
	for _, report := range p.reports {
		if report.ClusterID != "" && report.ClusterID == p.record.ClusterID {
			addresses := map[string]bool{} // a member that joined again may be listed twice
			for _, server := range report.Members {
				addresses[server.Address] = true
			}
			*replicas = max(*replicas, OddMembers(len(addresses)))
		}
	}
	p.OVNCluster.Status.Replicas.Central = *replicas
}

// OddMembers returns the smallest allowed number of members that is not below n.
func OddMembers(n int) int32 {
	switch {
	case n <= 1:
		return 1
	case n <= 3:
		return 3
	}
	return 5
}

// clientAddresses returns the addresses of all nodes that may run northd or kube-ovn-controller. It includes nodes
// without such a pod, so that a pod can move without a change of access rules. It also includes the databases' nodes, for
// tools that run there.
func clientAddresses(seen *observed.Cluster, spec v1alpha1.OVNClusterSpec, status v1alpha1.OVNClusterStatus) []string {
	var all []string
	for _, db := range render.Databases {
		for _, m := range db.Of(&status).Members {
			all = append(all, m.Address)
		}
	}
	for _, placement := range []v1alpha1.Placement{spec.Central.Placement, spec.Controller.Placement} {
		for _, n := range seen.Matching(placement) {
			for _, a := range k8s.InternalIPs(n) {
				all = append(all, a.String())
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
