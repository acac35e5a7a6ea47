// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// Recovery is the recovery that the spec requests for one database.
type Recovery struct {
	// ID is the name of the request. A recovery with the ID of the recorded one is not executed again.
	ID string
	// Source of the data of the new cluster.
	Source v1alpha1.RecoverySource
	// Node where the new cluster begins, and Backup that it begins with. Empty fields let Next choose.
	Node, Backup string
	// Always is set if the recovery also replaces a database that has a leader.
	Always bool
}

// Archive is the report of the backups pod.
type Archive struct {
	// Address is the IP address of the pod; empty until it answers.
	Address string
	adminapi.Status
}

// Follow updates the address of the backups pod in the record while a recovery reads from it.
func (a Archive) Follow(status *v1alpha1.DatabaseStatus) {
	r := status.Recovery
	if r != nil && r.Phase == v1alpha1.RecoveryCreating && r.BackupAddress != "" && a.Address != "" {
		r.BackupAddress = a.Address
	}
}

// recover returns the step of a recovery. It is one record: the node and the source of the new cluster, and no cluster
// ID. The record is sufficient. The member on that node creates the cluster once, because its file then has the record's
// date. All other members wait for the new ID, stop their servers, and join as in any change of membership.
func (m Membership) recover() Step {
	switch {
	case m.Recovery == nil, m.Status.Recovery != nil && m.Status.Recovery.ID == m.Recovery.ID:
		return m.underWay()
	case m.Status.ClusterID == "" && !m.Status.Recovering():
		return m.refuse("there was no database yet")
	case m.Recovery.Always, m.Status.ClusterID == "": // the last recovery did not complete
	case m.Status.Leader != "" && !m.leaderLeads():
		return Step{Message: "the recovery waits: there is a leader, which may have lost the others"} // it notices when its election timer expires
	case m.Status.Leader != "":
		return m.refuse("it has a leader: to replace it nevertheless, set spec.central.recovery.when to Always under another id")
	case !m.QuorumLost():
		return Step{Message: "the recovery waits: enough members for a leader are there, or may yet come; spec.central.recovery.when Always would not wait"}
	}
	from, problem := m.recoverFrom()
	if problem != "" {
		return Step{Stuck: true, Message: problem}
	}
	address := m.addressOn(from.node)
	if address == "" {
		return Step{Stuck: true, Message: fmt.Sprintf("node %s, where the recovery is to begin, is not in the cluster or has no InternalIP", from.node)}
	}
	next := m.anew(from.node, address)
	next.Recovery = &v1alpha1.RecoveryStatus{
		ID: m.Recovery.ID, Phase: v1alpha1.RecoveryCreating, Source: m.Recovery.Source, Node: from.node, Backup: from.backup,
		BackupAddress: from.archive, StartTime: &m.Now,
	}
	return Step{
		Action: ActionRecover, Recovered: next,
		Message: fmt.Sprintf("recovery %s: node %s re-creates the database (%s)", m.Recovery.ID, from.node, m.Recovery.Source),
	}
}

// underWay returns the progress of a recovery that has begun.
func (m Membership) underWay() Step {
	if r := m.Status.Recovery; r != nil && r.Phase == v1alpha1.RecoveryCreating && m.Status.ClusterID == "" {
		message := fmt.Sprintf("recovery %s: node %s re-creates the database", r.ID, r.Node)
		if said, answers := m.Reports[r.Node]; answers && said.Waiting != "" {
			message += ": " + said.Waiting
		}
		return Step{Message: message}
	}
	return Step{}
}

// refuse records that a recovery is not executed, now or later.
func (m Membership) refuse(why string) Step {
	next := *m.Status.DeepCopy()
	next.Recovery = &v1alpha1.RecoveryStatus{
		ID: m.Recovery.ID, Phase: v1alpha1.RecoveryRefused, Source: m.Recovery.Source, StartTime: &m.Now, Message: why,
	}
	return Step{Action: ActionRecover, Recovered: next, Message: fmt.Sprintf("recovery %s was refused: %s", m.Recovery.ID, why)}
}

// QuorumLost reports whether so many members are missing that the others cannot elect a leader.
func (m Membership) QuorumLost() bool {
	var voters []netip.Addr
	for _, member := range m.Status.Members {
		voters = append(voters, AddressOf(member))
	}
	if report, ok := m.Reports[best(m.Reports, m.Status.ClusterID)]; ok { // the cluster's own list may differ from the record
		voters = nil
		for _, server := range report.Members {
			if address, err := memberAddress(server.Address); err == nil {
				voters = append(voters, address)
			}
		}
	}
	left := 0
	for _, member := range m.Status.Members {
		if m.Missing[member.Node] == "" && slices.Contains(voters, AddressOf(member)) {
			left++
		}
	}
	return m.Status.ClusterID != "" && 2*left <= len(voters)
}

// leaderLeads reports whether more than half of the members serve, by their own reports.
func (m Membership) leaderLeads() bool {
	leader := m.Reports[m.Status.Leader]
	serving := 0
	for _, server := range leader.Members {
		if m.serves(server) {
			serving++
		}
	}
	return 2*serving > len(leader.Members)
}

// origin is the node where a new cluster begins and its backup, if any. archive is the address of the backups pod if the
// backup is on the claim.
type origin struct{ node, backup, archive string }

// recoverFrom returns the origin of the new cluster, or the reason why there is none.
func (m Membership) recoverFrom() (from origin, problem string) {
	wanted := m.Recovery
	among := map[string]adminapi.Status{}
	for n, report := range m.Reports {
		if wanted.Node == "" || wanted.Node == n {
			among[n] = report
		}
	}
	where := ""
	if wanted.Node != "" {
		where = " on node " + wanted.Node
	}
	switch wanted.Source {
	case v1alpha1.RecoverMember:
		// A member that the spec names may have stopped already, in a recovery that did not complete.
		if from.node = best(among, m.Status.ClusterID); from.node == "" && wanted.Node != "" && len(among) > 0 {
			from.node = wanted.Node
		}
		if from.node == "" {
			if moved := movedNodes(among, m.Status.ClusterID); len(moved) == 1 {
				from.node = moved[0]
			} else if len(moved) > 1 {
				return from, fmt.Sprintf("the nodes %s have other addresses than their members, and it is not known whose file has most of the data: "+
					"name one of them in spec.central.recovery.node", strings.Join(moved, ", "))
			}
		}
		if from.node == "" {
			return from, fmt.Sprintf("the recovery finds no member%s that answers and has the database's data: start one of their nodes, "+
				"or choose another source in spec.central.recovery", where)
		}
	case v1alpha1.RecoverBackup:
		var newest time.Time
		from.node, from.backup, newest = newestBackup(among, wanted.Backup)
		if _, name, at := newestBackup(map[string]adminapi.Status{"": m.Archive.Status}, wanted.Backup); at.After(newest) {
			from = origin{node: m.anyNode(among), backup: name, archive: m.Archive.Address}
		}
		if from.backup == "" {
			return from, fmt.Sprintf("the recovery finds no backup %s%s on nodes whose members answer, or on a claim: choose another source in "+
				"spec.central.recovery", wanted.Backup, where)
		}
	case v1alpha1.RecoverRebuild, v1alpha1.RecoverNone:
		from.node = m.anyNode(among)
	}
	if from.node == "" {
		return from, "the recovery finds no node for the database: start one, or label another"
	}
	return from, ""
}

// anyNode returns the requested node, else a node whose member answers, else a node that could hold a member.
func (m Membership) anyNode(among map[string]adminapi.Status) string {
	switch nodes := slices.Sorted(maps.Keys(among)); {
	case m.Recovery.Node != "":
		return m.Recovery.Node
	case len(nodes) > 0:
		return nodes[0]
	case m.Free != nil:
		return m.Free.Name
	}
	return ""
}

// best returns the node whose member has the longest log of the cluster.
func best(reports map[string]adminapi.Status, clusterID string) string {
	node, most := "", int64(-1)
	for _, n := range slices.Sorted(maps.Keys(reports)) {
		r := reports[n]
		if r.Waiting == "" && r.ServerID != "" && r.ClusterID == clusterID && r.LastIndex > most {
			node, most = n, r.LastIndex
		}
	}
	return node
}

// movedNodes returns the nodes with an intact file of the cluster that does not serve because the node's address has
// changed.
func movedNodes(reports map[string]adminapi.Status, clusterID string) []string {
	var nodes []string
	for _, n := range slices.Sorted(maps.Keys(reports)) {
		if clusterID != "" && reports[n].MovedClusterID == clusterID {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// newestBackup returns the newest backup, or the one with this name, and its node.
func newestBackup(reports map[string]adminapi.Status, name string) (node, backup string, newest time.Time) {
	for _, n := range slices.Sorted(maps.Keys(reports)) {
		for _, b := range reports[n].Backups {
			if (name == "" || name == b.Name) && b.Time.After(newest) {
				node, backup, newest = n, b.Name, b.Time
			}
		}
	}
	return node, backup, newest
}

// anew returns the record of a cluster that begins on a node. The other members stay in the record and join it: with
// fewer replicas the StatefulSet could delete the very pod that creates the cluster.
func (m Membership) anew(node, address string) v1alpha1.DatabaseStatus {
	since := m.Now
	if last := m.Status.Since; last != nil && !since.After(last.Time) {
		since = metav1.NewTime(last.Add(time.Second))
	}
	next := v1alpha1.DatabaseStatus{
		BootstrapNode: node, Since: &since, LastBackup: m.Status.LastBackup, LastBackupOnClaim: m.Status.LastBackupOnClaim,
		RequestedBackup: m.Status.RequestedBackup,
	}
	for _, member := range m.Status.Members {
		next.Members = append(next.Members, v1alpha1.DatabaseMember{Node: member.Node, Address: member.Address, Since: &since})
	}
	first := v1alpha1.DatabaseMember{Node: node, Address: address, Since: &since}
	at := slices.IndexFunc(next.Members, func(d v1alpha1.DatabaseMember) bool { return d.Node == node })
	if at < 0 { // in place of a lost member
		at = slices.IndexFunc(next.Members, func(d v1alpha1.DatabaseMember) bool { return m.Missing[d.Node] != "" })
	}
	if at < 0 {
		next.Members = append(next.Members, first)
	} else {
		next.Members[at] = first
	}
	return next
}

// addressOn returns the current or future address of a member on a node, or an empty string if the node does not exist.
func (m Membership) addressOn(node string) string {
	for _, member := range m.Status.Members {
		if member.Node == node && m.Nodes[AddressOf(member)] == node {
			return member.Address
		}
	}
	if m.Free != nil && m.Free.Name == node {
		return m.Free.Address.String()
	}
	addresses := slices.SortedFunc(maps.Keys(m.Nodes), netip.Addr.Compare)
	at := slices.IndexFunc(addresses, func(a netip.Addr) bool { return m.Nodes[a] == node })
	if at < 0 {
		return ""
	}
	return addresses[at].String()
}

// lostMembers lists the missing members with the reasons, in the order of the status.
func (m Membership) lostMembers() string {
	var lost []string
	for _, member := range m.Status.Members {
		if why := m.Missing[member.Node]; why != "" {
			lost = append(lost, fmt.Sprintf("%s (%s)", member.Node, why))
		}
	}
	return strings.Join(lost, ", ")
}

// DescribeLoss returns the message for a lost quorum: the missing members and what to do. The title names the database.
func (m Membership) DescribeLoss(title string) string {
	return fmt.Sprintf("the %s has lost its quorum: of %d members these are missing: %s. Running pods keep their connections, and no pod gets a network. "+
		"Bring members back; or, if they are lost for good, set spec.central.recovery (docs/operations/reliability.md says how)",
		title, len(m.Status.Members), cmp.Or(m.lostMembers(), "none"))
}
