// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

// membership is what the next step of a database's membership follows from. One step is taken per pass, and each is decided from what the
// members themselves report, so that a pass that ended halfway changes nothing of the next.
type membership struct {
	// want is how many members there are to be.
	want   int
	status v1alpha1.DatabaseStatus
	// reports by node, of the members that answered.
	reports map[string]adminapi.Status
	// nodes of the cluster, by the address that a member there has.
	nodes map[netip.Addr]string
	// free is a node that a new member can be on; nil when there is none.
	free *corev1.Node
	// silent nodes do not answer.
	silent map[string]bool
	// now is since when a member that is told to join anew is there.
	now metav1.Time
	// last is the node of the pod that goes when there are fewer replicas: that with the highest ordinal. Empty when that has no node.
	last string
	// missing members by node: why they do not serve, where that is more than a start that takes a moment.
	missing map[string]string
	// recovery is what the specification asks for, or nil.
	recovery *recovery
	// archive has backups, if anybody does.
	archive archive
}

// memberAction is what a step does.
type memberAction int

const (
	// actionNone waits for what the step's message says, if anything.
	actionNone memberAction = iota
	// actionRecord changes the record: the step holds the members as they are to be recorded.
	actionRecord
	// actionKick takes the server out of the cluster, through the leader.
	actionKick
	// actionLeave lets the member on the node leave.
	actionLeave
	// actionRecover changes the record of the whole database: the step holds it.
	actionRecover
)

// memberStep is one step of a membership.
type memberStep struct {
	action memberAction
	// members to record, node of a member, server to kick (its Raft address).
	members []v1alpha1.DatabaseMember
	node    string
	server  string
	// recovered is the record of a database that is made anew.
	recovered v1alpha1.DatabaseStatus
	// message says what is done or waited for; stuck: a person has to do something.
	message string
	stuck   bool
}

// next returns the next step; the zero step when the membership is as wanted.
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
	for _, step := range []func(adminapi.Status) memberStep{m.strangers, m.lost, m.joining, m.shrink, m.grow} {
		if s := step(leader); s.action != actionNone || s.message != "" {
			return s
		}
	}
	return memberStep{}
}

// withoutLeader takes up members that the database knows and the record does not: those of an installation that was removed and made again.
// Nothing else can be done without a leader.
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

// adopt records a member that the database has on a node of the cluster, while there are to be more.
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

// strangers are members that the database has and the record does not: they are taken up, or kicked.
func (m membership) strangers(leader adminapi.Status) memberStep {
	if s := m.adopt(leader); s.action != actionNone {
		return s
	}
	for _, server := range leader.Members {
		address, err := memberAddress(server.Address)
		if err == nil && !m.recorded(address) {
			return m.kick(leader, server.Address, fmt.Sprintf("the member at %s, which is not recorded any more,", address))
		}
	}
	return memberStep{}
}

// lost are recorded members whose node is gone for good, or that do not hold any more what they held.
func (m membership) lost(leader adminapi.Status) memberStep {
	for i, member := range m.status.Members {
		server := m.listed(leader, member)
		gone := m.nodes[addressOf(member)] != member.Node
		switch {
		case gone && server != "":
			return m.kick(leader, server, fmt.Sprintf("the member of node %s, which is not in the cluster any more,", member.Node))
		case gone && m.canForget(leader, member):
			return m.forget(i)
		case gone && len(m.status.Members) > m.want:
			continue // another one goes first
		case gone && m.free == nil:
			return memberStep{stuck: true, message: fmt.Sprintf("node %s, which held a member, is not in the cluster any more, and there is no other node "+
				"for its place: label a node, or lower spec.central.replicas", member.Node)}
		case gone:
			members := slices.Clone(m.status.Members)
			members[i] = m.joiner(m.free.Name, k8s.InternalIPs(m.free)[0].String())
			return memberStep{
				action: actionRecord, members: members,
				message: fmt.Sprintf("node %s takes the place of node %s, which is not in the cluster any more", m.free.Name, member.Node),
			}
		case m.reports[member.Node].NeedsRejoin && server != "":
			return m.kick(leader, server, fmt.Sprintf("the member of node %s, whose data is not there any more,", member.Node))
		case m.reports[member.Node].NeedsRejoin && m.canForget(leader, member):
			return m.forget(i) // it has left
		case m.reports[member.Node].NeedsRejoin:
			members := slices.Clone(m.status.Members)
			members[i] = m.joiner(member.Node, member.Address)
			return memberStep{action: actionRecord, members: members, message: fmt.Sprintf("the member of node %s joins anew", member.Node)}
		}
	}
	return memberStep{}
}

// joining waits for members that were told to join: one comes at a time. One that is too many and has not joined is not waited for.
func (m membership) joining(leader adminapi.Status) memberStep {
	for i, member := range m.status.Members {
		if member.ServerID != "" {
			continue
		}
		if len(m.status.Members) > m.want && m.listed(leader, member) == "" {
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

// elsewhere lets another node take the place of one that fell silent before its member has joined: unlike a member, it holds nothing that could
// come back with it. What it has begun is undone first.
func (m membership) elsewhere(leader adminapi.Status, i int) memberStep {
	member := m.status.Members[i]
	if server := m.listed(leader, member); server != "" {
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

// shrink lets the member leave whose pod goes when there is one replica less.
func (m membership) shrink(leader adminapi.Status) memberStep {
	if len(m.status.Members) <= m.want {
		return memberStep{}
	}
	at := slices.IndexFunc(m.status.Members, func(d v1alpha1.DatabaseMember) bool { return d.Node == m.last })
	if at < 0 {
		return memberStep{message: "there is a member too many, and the last pod has no node yet"}
	}
	member := m.status.Members[at]
	server := m.listed(leader, member)
	if server == "" {
		return m.forget(at)
	}
	if m.silent[member.Node] { // it would not hear of it
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
		if !m.serves(server.Address) {
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

// kick takes a server out, which is done by the leader, if the others can go on without it.
func (m membership) kick(leader adminapi.Status, server, who string) memberStep {
	if server == leader.Address {
		return memberStep{message: who + " leads, and stays until another one does"}
	}
	if !m.keepsQuorum(leader, server) {
		return memberStep{message: who + " stays until enough of the others serve"}
	}
	return memberStep{action: actionKick, server: server, message: who + " is taken out of the cluster"}
}

// keepsQuorum: of the members without this one, more than half serve.
func (m membership) keepsQuorum(leader adminapi.Status, without string) bool {
	rest, serving := 0, 0
	for _, server := range leader.Members {
		if server.Address == without {
			continue
		}
		rest++
		if m.serves(server.Address) {
			serving++
		}
	}
	return 2*serving > rest
}

// serves: the member at this Raft address says that it is connected.
func (m membership) serves(raft string) bool {
	for _, report := range m.reports {
		if report.Address == raft && report.Connected {
			return true
		}
	}
	return false
}

// joiner is a member that has yet to join.
func (m membership) joiner(node, address string) v1alpha1.DatabaseMember {
	since := m.now
	if m.status.Since != nil && since.Before(m.status.Since) {
		since = *m.status.Since // the clock was set back
	}
	return v1alpha1.DatabaseMember{Node: node, Address: address, Since: &since}
}

// canForget: there is a member too many, and this one may be dropped from the record, which makes one pod less. That is the last one, be it
// another member's, which then starts again in place of the one that was dropped: the others must do without it for so long.
func (m membership) canForget(leader adminapi.Status, member v1alpha1.DatabaseMember) bool {
	if len(m.status.Members) <= m.want {
		return false
	}
	serving := 0
	for _, server := range leader.Members {
		if m.serves(server.Address) {
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
		message: fmt.Sprintf("node %s holds no member any more", node),
	}
}

// listed is the Raft address under which the leader has a recorded member; empty when it has none.
func (m membership) listed(leader adminapi.Status, member v1alpha1.DatabaseMember) string {
	for _, server := range leader.Members {
		if address, err := memberAddress(server.Address); err == nil && address == addressOf(member) {
			return server.Address
		}
	}
	return ""
}

func (m membership) recorded(address netip.Addr) bool {
	return slices.ContainsFunc(m.status.Members, func(d v1alpha1.DatabaseMember) bool { return addressOf(d) == address })
}

// addressOf is a recorded address, which the operator wrote.
func addressOf(d v1alpha1.DatabaseMember) netip.Addr {
	address, _ := netip.ParseAddr(d.Address) // the zero address, which no node has, for what a person wrote there
	return address
}
