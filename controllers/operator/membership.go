// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

// membership is the input of the next step of a database's membership. A pass takes one step. Each step is decided from
// the members' own reports, so an interrupted pass does not affect the next one.
type membership struct {
	// want is the requested number of members.
	want   int
	status v1alpha1.DatabaseStatus
	// reports of the members that answered, by node.
	reports map[string]adminapi.Status
	// nodes of the cluster, by the address of the member there.
	nodes map[netip.Addr]string
	// free is a node for a new member; nil if there is none.
	free *corev1.Node
	// silent marks nodes that do not answer.
	silent map[string]bool
	// now is recorded as the time from which a joining member exists.
	now metav1.Time
	// last is the node of the pod with the highest ordinal, which the StatefulSet deletes when there is one replica less.
	// It is empty if that pod has no node.
	last string
	// missing describes, by node, why a member does not serve. Members that are only starting are not included.
	missing map[string]string
	// recovery is the recovery that the spec requests, or nil.
	recovery *recovery
	// archive lists the backups on the claim, if there is one.
	archive archive
}

// memberAction is the action of a step.
type memberAction int

const (
	// actionNone waits for the event that the step's message describes, if any.
	actionNone memberAction = iota
	// actionRecord replaces the recorded members with the step's.
	actionRecord
	// actionKick removes the server from the cluster, through the leader.
	actionKick
	// actionLeave makes the member on the node leave the cluster.
	actionLeave
	// actionRecover replaces the record of the whole database with the step's.
	actionRecover
)

// memberStep is one step of a membership.
type memberStep struct {
	action memberAction
	// members to record, node of a member, server to remove (its Raft address, or the first digits of its ID if another server has that
	// address).
	members []v1alpha1.DatabaseMember
	node    string
	server  string
	// recovered is the record of a database that is created again.
	recovered v1alpha1.DatabaseStatus
	// message describes the action or the wait. stuck is set if a person has to act.
	message string
	stuck   bool
}

// next returns the next step, or the zero step if the membership matches the spec.
func (m membership) next() memberStep {
	if s := m.recover(); s.action != actionNone || s.message != "" {
		return s
	}
	if m.status.ClusterID == "" {
		return memberStep{}
	}
	leader, known := m.reports[m.status.Leader]
	if !known || !leader.Connected || leader.Role != adminapi.RoleLeader {
		return m.withoutLeader()
	}
	for _, step := range []func(adminapi.Status) memberStep{m.unrecordedMembers, m.replaceLost, m.joining, m.shrink, m.grow} {
		if s := step(leader); s.action != actionNone || s.message != "" {
			return s
		}
	}
	return memberStep{}
}

// withoutLeader records members that the database lists and the record does not, as after the removal and re-creation of
// an installation. All other steps need a leader.
func (m membership) withoutLeader() memberStep {
	for _, node := range sortedNodes(m.reports) {
		if report := m.reports[node]; report.ClusterID == m.status.ClusterID {
			if s := m.adopt(report); s.action != actionNone {
				return s
			}
		}
	}
	return memberStep{}
}

// adopt records a member that the database lists on a node of the cluster, while the record has too few members.
func (m membership) adopt(report adminapi.Status) memberStep {
	for _, server := range report.Members {
		address, err := memberAddress(server.Address)
		if err != nil || m.recorded(address) {
			continue
		}
		if node := m.nodes[address]; node != "" && len(m.status.Members) < m.want {
			return memberStep{
				action: actionRecord, message: fmt.Sprintf("the database has a member on node %s, which is taken up", node),
				members: append(slices.Clone(m.status.Members), v1alpha1.DatabaseMember{Node: node, Address: address.String()}),
			}
		}
	}
	return memberStep{}
}

// unrecordedMembers handles members that the database lists and the record does not: it records or kicks them. A member that lost its data
// before its first report joined again under the same address, and the database lists both.
func (m membership) unrecordedMembers(leader adminapi.Status) memberStep {
	if s := m.adopt(leader); s.action != actionNone {
		return s
	}
	for _, server := range leader.Members {
		address, err := memberAddress(server.Address)
		if err == nil && !m.recorded(address) {
			return m.kick(leader, server, fmt.Sprintf("the unrecorded member at %s", address))
		}
		if err == nil && m.superseded(leader, server, address) {
			return m.kick(leader, server, fmt.Sprintf("the former member %s at %s", server.ServerID, address))
		}
	}
	return memberStep{}
}

// superseded reports whether the database also lists the recorded member at the server's address.
func (m membership) superseded(leader adminapi.Status, server adminapi.Member, address netip.Addr) bool {
	at := slices.IndexFunc(m.status.Members, func(d v1alpha1.DatabaseMember) bool { return addressOf(d) == address })
	if at < 0 || m.status.Members[at].ServerID == "" {
		return false
	}
	recorded := func(s adminapi.Member) bool { return strings.HasPrefix(m.status.Members[at].ServerID, s.ServerID) }
	return !recorded(server) && slices.ContainsFunc(leader.Members, func(s adminapi.Member) bool { return s.Address == server.Address && recorded(s) })
}

// whyMoved says why the recorded address of a member is not its node's.
func (m membership) whyMoved(node string) string {
	for _, name := range m.nodes {
		if name == node {
			return "has another address now"
		}
	}
	return "was deleted"
}

// replaceLost handles recorded members whose node is deleted or has another address, or whose data is lost.
func (m membership) replaceLost(leader adminapi.Status) memberStep {
	for i, member := range m.status.Members {
		server, listed := m.listed(leader, member)
		gone := m.nodes[addressOf(member)] != member.Node
		switch {
		case gone && listed:
			return m.kick(leader, server, fmt.Sprintf("the member of node %s, which %s,", member.Node, m.whyMoved(member.Node)))
		case gone && m.canForget(leader, member):
			return m.forget(i)
		case gone && len(m.status.Members) > m.want:
			continue // another member is removed first
		case gone && m.free == nil:
			return memberStep{stuck: true, message: fmt.Sprintf("node %s, which held a member, %s, and there is no other node "+
				"for its place: label a node, or lower spec.central.replicas", member.Node, m.whyMoved(member.Node))}
		case gone:
			members := slices.Clone(m.status.Members)
			members[i] = m.joiner(m.free.Name, k8s.InternalIPs(m.free)[0].String())
			return memberStep{
				action: actionRecord, members: members,
				message: fmt.Sprintf("node %s takes the place of node %s, which %s", m.free.Name, member.Node, m.whyMoved(member.Node)),
			}
		case m.reports[member.Node].NeedsRejoin && listed:
			return m.kick(leader, server, fmt.Sprintf("the member of node %s, whose data is lost,", member.Node))
		case m.reports[member.Node].NeedsRejoin && m.canForget(leader, member):
			return m.forget(i) // it has left
		case m.reports[member.Node].NeedsRejoin:
			members := slices.Clone(m.status.Members)
			members[i] = m.joiner(member.Node, member.Address)
			return memberStep{action: actionRecord, members: members, message: fmt.Sprintf("the member of node %s joins again", member.Node)}
		}
	}
	return memberStep{}
}

// joining waits for members that were asked to join, one at a time. It does not wait for a surplus member that has not
// joined.
func (m membership) joining(leader adminapi.Status) memberStep {
	for i, member := range m.status.Members {
		if member.ServerID != "" {
			continue
		}
		if _, listed := m.listed(leader, member); len(m.status.Members) > m.want && !listed {
			if m.canForget(leader, member) {
				return m.forget(i)
			}
			continue
		}
		if m.silent[member.Node] {
			return m.elsewhere(leader, i)
		}
		return memberStep{message: fmt.Sprintf("the member of node %s joins", member.Node)}
	}
	return memberStep{}
}

// elsewhere replaces a node that stopped answering before its member joined. Unlike a member's node, such a node has no
// data of the cluster. The server is first removed from the cluster, if the leader lists it already.
func (m membership) elsewhere(leader adminapi.Status, i int) memberStep {
	member := m.status.Members[i]
	if server, listed := m.listed(leader, member); listed {
		return m.kick(leader, server, fmt.Sprintf("the member of node %s, which does not answer and has not joined,", member.Node))
	}
	if m.free == nil {
		return memberStep{stuck: true, message: fmt.Sprintf("node %s, whose member has yet to join, does not answer, and there is no other node for its place: "+
			"start it, label another, or lower spec.central.replicas", member.Node)}
	}
	members := slices.Clone(m.status.Members)
	members[i] = m.joiner(m.free.Name, k8s.InternalIPs(m.free)[0].String())
	return memberStep{
		action: actionRecord, members: members,
		message: fmt.Sprintf("node %s takes the place of node %s, which does not answer and whose member has not joined", m.free.Name, member.Node),
	}
}

// shrink removes the member whose pod the StatefulSet deletes when there is one replica less.
func (m membership) shrink(leader adminapi.Status) memberStep {
	if len(m.status.Members) <= m.want {
		return memberStep{}
	}
	at := slices.IndexFunc(m.status.Members, func(d v1alpha1.DatabaseMember) bool { return d.Node == m.last })
	if at < 0 {
		return memberStep{message: "there is a member too many, and the last pod has no node yet"}
	}
	member := m.status.Members[at]
	server, listed := m.listed(leader, member)
	if !listed {
		return m.forget(at)
	}
	if m.silent[member.Node] { // it would not get the request
		return m.kick(leader, server, fmt.Sprintf("the member of node %s, which does not answer and is too many,", member.Node))
	}
	if !m.keepsQuorum(leader, server) {
		return memberStep{message: fmt.Sprintf("the member of node %s stays until enough of the others serve", member.Node)}
	}
	return memberStep{action: actionLeave, node: member.Node, message: fmt.Sprintf("the member of node %s leaves", member.Node)}
}

// grow adds a member once all others serve.
func (m membership) grow(leader adminapi.Status) memberStep {
	if len(m.status.Members) >= m.want {
		return memberStep{}
	}
	for _, server := range leader.Members {
		if !m.serves(server) {
			return memberStep{message: fmt.Sprintf("a member joins once all others serve; that at %s does not", server.Address)}
		}
	}
	if m.free == nil {
		return memberStep{stuck: true, message: fmt.Sprintf("there are nodes for %d members of %d: label a node, or lower spec.central.replicas",
			len(m.status.Members), m.want)}
	}
	return memberStep{
		action: actionRecord, members: append(slices.Clone(m.status.Members), m.joiner(m.free.Name, k8s.InternalIPs(m.free)[0].String())),
		message: fmt.Sprintf("a member joins on node %s", m.free.Name),
	}
}

// kick removes a server through the leader, if the others keep their quorum without it. A leader is not removed.
func (m membership) kick(leader adminapi.Status, server adminapi.Member, who string) memberStep {
	if server.Address == leader.Address && strings.HasPrefix(leader.ServerID, server.ServerID) {
		return memberStep{message: who + " leads, and stays until another one does"}
	}
	if !m.keepsQuorum(leader, server) {
		return memberStep{message: who + " stays until enough of the others serve"}
	}
	name := server.Address
	if slices.ContainsFunc(leader.Members, func(s adminapi.Member) bool { return s.Address == name && s != server }) {
		name = server.ServerID
	}
	return memberStep{action: actionKick, server: name, message: who + " is taken out of the cluster"}
}

// keepsQuorum reports whether more than half of the other members serve.
func (m membership) keepsQuorum(leader adminapi.Status, without adminapi.Member) bool {
	rest, serving := 0, 0
	for _, server := range leader.Members {
		if server == without {
			continue
		}
		rest++
		if m.serves(server) {
			serving++
		}
	}
	return 2*serving > rest
}

// serves reports whether a listed member is connected, by its own report.
func (m membership) serves(server adminapi.Member) bool {
	for _, report := range m.reports {
		if report.Address == server.Address && strings.HasPrefix(report.ServerID, server.ServerID) && report.Connected {
			return true
		}
	}
	return false
}

// joiner returns the record of a member that has not joined yet.
func (m membership) joiner(node, address string) v1alpha1.DatabaseMember {
	since := m.now
	if m.status.Since != nil && since.Before(m.status.Since) {
		since = *m.status.Since // the clock was set back
	}
	return v1alpha1.DatabaseMember{Node: node, Address: address, Since: &since}
}

// canForget reports whether there is a surplus member and this one may be dropped from the record, which removes one pod.
// The StatefulSet deletes the pod with the highest ordinal, maybe of another member. That member then restarts in the
// dropped member's place, so the others must have a quorum without it.
func (m membership) canForget(leader adminapi.Status, member v1alpha1.DatabaseMember) bool {
	if len(m.status.Members) <= m.want {
		return false
	}
	serving := 0
	for _, server := range leader.Members {
		if m.serves(server) {
			serving++
		}
	}
	_, runs := m.reports[member.Node]
	return member.Node == m.last || m.last == "" && !runs || len(leader.Members) == 1 || 2*(serving-1) > len(leader.Members)
}

// forget drops a member from the record.
func (m membership) forget(i int) memberStep {
	node := m.status.Members[i].Node
	return memberStep{
		action: actionRecord, members: slices.Delete(slices.Clone(m.status.Members), i, i+1),
		message: fmt.Sprintf("node %s no longer holds a member", node),
	}
}

// listed returns the leader's entry of a recorded member, if there is one.
func (m membership) listed(leader adminapi.Status, member v1alpha1.DatabaseMember) (server adminapi.Member, found bool) {
	at := slices.IndexFunc(leader.Members, func(s adminapi.Member) bool {
		address, err := memberAddress(s.Address)
		return err == nil && address == addressOf(member)
	})
	if at < 0 {
		return adminapi.Member{}, false
	}
	return leader.Members[at], true
}

func (m membership) recorded(address netip.Addr) bool {
	return slices.ContainsFunc(m.status.Members, func(d v1alpha1.DatabaseMember) bool { return addressOf(d) == address })
}

// addressOf returns the address in a member's record, which the operator wrote.
func addressOf(d v1alpha1.DatabaseMember) netip.Addr {
	address, _ := netip.ParseAddr(d.Address) // a manual change that does not parse gives the zero address, which no node has
	return address
}
