// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

// recovery is the recovery that the spec requests for one database; nil for none.
type recovery struct {
	id, node, backup string
	source           v1alpha1.RecoverySource
	always           bool
}

// wantedRecovery returns the recovery that the spec requests for a database, or nil.
func wantedRecovery(spec *v1alpha1.Recovery, source func(*v1alpha1.Recovery) v1alpha1.RecoverySource) *recovery {
	if spec == nil || source(spec) == v1alpha1.RecoverNone {
		return nil
	}
	return &recovery{
		id: spec.ID, node: spec.Node, backup: spec.Backup, source: source(spec), always: spec.When == v1alpha1.RecoverAlways,
	}
}

// recover returns the step of a recovery. It is one record: the node and the source of the new cluster, and no cluster
// ID. The record is sufficient. The member on that node creates the cluster once, because its file then has the record's
// date. All other members wait for the new ID, stop their servers, and join as in any change of membership.
func (m membership) recover() memberStep {
	switch {
	case m.recovery == nil, m.status.Recovery != nil && m.status.Recovery.ID == m.recovery.id:
		return m.underWay()
	case m.status.ClusterID == "" && !m.status.Recovering():
		return m.refuse("there was no database yet")
	case m.recovery.always, m.status.ClusterID == "": // the last recovery did not complete
	case m.status.Leader != "" && !m.leaderLeads():
		return memberStep{message: "the recovery waits: there is a leader, which may have lost the others"} // it notices when its election timer expires
	case m.status.Leader != "":
		return m.refuse("it has a leader: to replace it nevertheless, set spec.central.recovery.when to Always under another id")
	case !m.quorumLost():
		return memberStep{message: "the recovery waits: enough members for a leader are there, or may yet come; spec.central.recovery.when Always would not wait"}
	}
	from, problem := m.recoverFrom()
	if problem != "" {
		return memberStep{stuck: true, message: problem}
	}
	address := m.addressOn(from.node)
	if address == "" {
		return memberStep{stuck: true, message: fmt.Sprintf("node %s, where the recovery is to begin, is not in the cluster or has no InternalIP", from.node)}
	}
	next := m.anew(from.node, address)
	next.Recovery = &v1alpha1.RecoveryStatus{
		ID: m.recovery.id, Phase: v1alpha1.RecoveryCreating, Source: m.recovery.source, Node: from.node, Backup: from.backup,
		BackupAddress: from.archive, StartTime: &m.now,
	}
	return memberStep{
		action: actionRecover, recovered: next,
		message: fmt.Sprintf("recovery %s: node %s re-creates the database (%s)", m.recovery.id, from.node, m.recovery.source),
	}
}

// underWay returns the progress of a recovery that has begun.
func (m membership) underWay() memberStep {
	if r := m.status.Recovery; r != nil && r.Phase == v1alpha1.RecoveryCreating && m.status.ClusterID == "" {
		message := fmt.Sprintf("recovery %s: node %s re-creates the database", r.ID, r.Node)
		if said, answers := m.reports[r.Node]; answers && said.Waiting != "" {
			message += ": " + said.Waiting
		}
		return memberStep{message: message}
	}
	return memberStep{}
}

// refuse records that a recovery is not executed, now or later.
func (m membership) refuse(why string) memberStep {
	next := *m.status.DeepCopy()
	next.Recovery = &v1alpha1.RecoveryStatus{
		ID: m.recovery.id, Phase: v1alpha1.RecoveryRefused, Source: m.recovery.source, StartTime: &m.now, Message: why,
	}
	return memberStep{action: actionRecover, recovered: next, message: fmt.Sprintf("recovery %s was refused: %s", m.recovery.id, why)}
}

// finishRecovery completes a recovery when the writer of the database has written everything, as a label of its pod
// reports.
func (r *Reconciler) finishRecovery(p *pass, db render.Database) {
	status := p.database(db)
	if !status.Recovering() || status.ClusterID == "" {
		return
	}
	for _, pod := range p.podsOf(db.Writer) {
		if pod.Labels[db.WrittenLabel] == status.ClusterID && pod.DeletionTimestamp.IsZero() {
			status.Recovery.Phase, status.Recovery.CompletionTime = v1alpha1.RecoveryCompleted, new(metav1.NewTime(p.now))
			r.Recorder.Eventf(p.cluster, nil, corev1.EventTypeNormal, "DatabaseRecovered", "Reconcile", "%s", cut(fmt.Sprintf(
				"%s: recovery %s is complete: %s on node %s", db.Title, status.Recovery.ID, status.Recovery.Source, status.Recovery.Node), maxNote))
			return
		}
	}
	p.note(db.Workload, note{text: fmt.Sprintf("recovery %s waits for %s to bring the database up to date", status.Recovery.ID, db.Writer)})
}

// quorumLost reports whether so many members are missing that the others cannot elect a leader.
func (m membership) quorumLost() bool {
	var voters []netip.Addr
	for _, member := range m.status.Members {
		voters = append(voters, addressOf(member))
	}
	if report, ok := m.reports[best(m.reports, m.status.ClusterID)]; ok { // the cluster's own list may differ from the record
		voters = nil
		for _, server := range report.Members {
			if address, err := memberAddress(server.Address); err == nil {
				voters = append(voters, address)
			}
		}
	}
	left := 0
	for _, member := range m.status.Members {
		if m.missing[member.Node] == "" && slices.Contains(voters, addressOf(member)) {
			left++
		}
	}
	return m.status.ClusterID != "" && 2*left <= len(voters)
}

// leaderLeads reports whether more than half of the members serve, by their own reports.
func (m membership) leaderLeads() bool {
	leader := m.reports[m.status.Leader]
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
func (m membership) recoverFrom() (from origin, problem string) {
	wanted := m.recovery
	among := map[string]adminapi.Status{}
	for n, report := range m.reports {
		if wanted.node == "" || wanted.node == n {
			among[n] = report
		}
	}
	where := ""
	if wanted.node != "" {
		where = " on node " + wanted.node
	}
	switch wanted.source {
	case v1alpha1.RecoverMember:
		// A member that the spec names may have stopped already, in a recovery that did not complete.
		if from.node = best(among, m.status.ClusterID); from.node == "" && wanted.node != "" && len(among) > 0 {
			from.node = wanted.node
		}
		if from.node == "" {
			if moved := movedNodes(among, m.status.ClusterID); len(moved) == 1 {
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
		from.node, from.backup, newest = newestBackup(among, wanted.backup)
		if _, name, at := newestBackup(map[string]adminapi.Status{"": m.archive.Status}, wanted.backup); at.After(newest) {
			from = origin{node: m.anyNode(among), backup: name, archive: m.archive.address}
		}
		if from.backup == "" {
			return from, fmt.Sprintf("the recovery finds no backup %s%s on nodes whose members answer, or on a claim: choose another source in "+
				"spec.central.recovery", wanted.backup, where)
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
func (m membership) anyNode(among map[string]adminapi.Status) string {
	switch nodes := sortedNodes(among); {
	case m.recovery.node != "":
		return m.recovery.node
	case len(nodes) > 0:
		return nodes[0]
	case m.free != nil:
		return m.free.Name
	}
	return ""
}

// best returns the node whose member has the longest log of the cluster.
func best(reports map[string]adminapi.Status, clusterID string) string {
	node, most := "", int64(-1)
	for _, n := range sortedNodes(reports) {
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
	for _, n := range sortedNodes(reports) {
		if clusterID != "" && reports[n].MovedClusterID == clusterID {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// newestBackup returns the newest backup, or the one with this name, and its node.
func newestBackup(reports map[string]adminapi.Status, name string) (node, backup string, newest time.Time) {
	for _, n := range sortedNodes(reports) {
		for _, b := range reports[n].Backups {
			if (name == "" || name == b.Name) && b.Time.After(newest) {
				node, backup, newest = n, b.Name, b.Time
			}
		}
	}
	return node, backup, newest
}

// refindArchive updates the address of the backups pod while a recovery reads from it.
func (p *pass) refindArchive(status *v1alpha1.DatabaseStatus) {
	r := status.Recovery
	if r != nil && r.Phase == v1alpha1.RecoveryCreating && r.BackupAddress != "" && p.archive.address != "" {
		r.BackupAddress = p.archive.address
	}
}

// anew returns the record of a cluster that begins on a node. The other members stay in the record and join it: with
// fewer replicas the StatefulSet could delete the very pod that creates the cluster.
func (m membership) anew(node, address string) v1alpha1.DatabaseStatus {
	since := m.now
	if last := m.status.Since; last != nil && !since.After(last.Time) {
		since = metav1.NewTime(last.Add(time.Second))
	}
	next := v1alpha1.DatabaseStatus{
		BootstrapNode: node, Since: &since, LastBackup: m.status.LastBackup, LastBackupOnClaim: m.status.LastBackupOnClaim,
		RequestedBackup: m.status.RequestedBackup,
	}
	for _, member := range m.status.Members {
		next.Members = append(next.Members, v1alpha1.DatabaseMember{Node: member.Node, Address: member.Address, Since: &since})
	}
	first := v1alpha1.DatabaseMember{Node: node, Address: address, Since: &since}
	at := slices.IndexFunc(next.Members, func(d v1alpha1.DatabaseMember) bool { return d.Node == node })
	if at < 0 { // in place of a lost member
		at = slices.IndexFunc(next.Members, func(d v1alpha1.DatabaseMember) bool { return m.missing[d.Node] != "" })
	}
	if at < 0 {
		next.Members = append(next.Members, first)
	} else {
		next.Members[at] = first
	}
	return next
}

// addressOn returns the current or future address of a member on a node, or an empty string if the node does not exist.
func (m membership) addressOn(node string) string {
	for _, member := range m.status.Members {
		if member.Node == node && m.nodes[addressOf(member)] == node {
			return member.Address
		}
	}
	if m.free != nil && m.free.Name == node {
		return k8s.InternalIPs(m.free)[0].String()
	}
	addresses := slices.SortedFunc(maps.Keys(m.nodes), netip.Addr.Compare)
	at := slices.IndexFunc(addresses, func(a netip.Addr) bool { return m.nodes[a] == node })
	if at < 0 {
		return ""
	}
	return addresses[at].String()
}

// lostMembers lists the missing members with the reasons, in the order of the status.
func (m membership) lostMembers() string {
	var lost []string
	for _, member := range m.status.Members {
		if why := m.missing[member.Node]; why != "" {
			lost = append(lost, fmt.Sprintf("%s (%s)", member.Node, why))
		}
	}
	return strings.Join(lost, ", ")
}

// describeLoss returns the message for a lost quorum: the missing members and what to do.
func (m membership) describeLoss(title string) string {
	return fmt.Sprintf("the %s has lost its quorum: of %d members these are missing: %s. Running pods keep their connections, and no pod gets a network. "+
		"Bring members back; or, if they are lost for good, set spec.central.recovery (docs/reliability.md says how)",
		title, len(m.status.Members), cmp.Or(m.lostMembers(), "none"))
}
