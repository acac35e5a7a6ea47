// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package raft

import (
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

// Membership is the input of the next step of a database's membership. A pass takes one step. Each step is decided from
// the members' own reports, so an interrupted pass does not affect the next one.
type Membership struct {
	// Want is the requested number of members.
	Want int
	// Status is the record of the database, with the reports of this pass (Record).
	Status v1alpha1.DatabaseStatus
	// Reports of the members that answered, by node.
	Reports map[string]adminapi.Status
	// Nodes of the cluster, by the address of the member there.
	Nodes map[netip.Addr]string
	// Foreign marks nodes outside of the databases' placement. A member there is not recorded: a node can report the address of a former member.
	Foreign map[string]bool
	// Free is a node for a new member; nil if there is none.
	Free *Node
	// Silent marks nodes that do not answer.
	Silent map[string]bool
	// Now is recorded as the time from which a joining member exists.
	Now metav1.Time
	// Last is the node of the pod with the highest ordinal, which the StatefulSet deletes when there is one replica less.
	// It is empty if that pod has no node.
	Last string
	// Missing describes, by node, why a member does not serve. Members that are only starting are not included.
	Missing map[string]string
	// Recovery is the recovery that the spec requests, or nil.
	Recovery *Recovery
	// Archive lists the backups on the claim, if there is one.
	Archive Archive
}

// Node is a node that can hold a member, and the address that the member would have.
type Node struct {
	Name    string
	Address netip.Addr
}

// Action is the action of a step.
type Action int

const (
	// ActionNone waits for the event that the step's message describes, if any.
	ActionNone Action = iota
	// ActionRecord replaces the recorded members with the step's.
	ActionRecord
	// ActionKick removes the server from the cluster, through the leader.
	ActionKick
	// ActionLeave makes the member on the node leave the cluster.
	ActionLeave
	// ActionRecover replaces the record of the whole database with the step's.
	ActionRecover
)

// Step is one step of a membership.
type Step struct {
	Action Action
	// Members to record, Node of a member, Server to remove (its Raft address, or the first digits of its ID if another server has that
	// address).
	Members []v1alpha1.DatabaseMember
	Node    string
	Server  string
	// Recovered is the record of a database that is created again.
	Recovered v1alpha1.DatabaseStatus
	// Message describes the action or the wait. Stuck is set if a person has to act.
	Message string
	Stuck   bool
}

// Next returns the next step, or the zero step if the membership matches the spec.
func (m Membership) Next() Step {
	if s := m.recover(); s.Action != ActionNone || s.Message != "" {
		return s
	}
	if m.Status.ClusterID == "" {
		return Step{}
	}
	leader, known := m.Reports[m.Status.Leader]
	if !known || !leader.Connected || leader.Role != adminapi.RoleLeader {
		return m.withoutLeader()
	}
	for _, step := range []func(adminapi.Status) Step{m.unrecordedMembers, m.replaceLost, m.joining, m.shrink, m.grow} {
		if s := step(leader); s.Action != ActionNone || s.Message != "" {
			return s
		}
	}
	return Step{}
}

// withoutLeader records members that the database lists and the record does not, as after the removal and re-creation of
// an installation. All other steps need a leader.
func (m Membership) withoutLeader() Step {
	for _, node := range slices.Sorted(maps.Keys(m.Reports)) {
		if report := m.Reports[node]; report.ClusterID == m.Status.ClusterID {
			if s := m.adopt(report); s.Action != ActionNone {
				return s
			}
		}
	}
	return Step{}
}

// adopt records a member that the database lists on a node of the cluster, while the record has too few members.
func (m Membership) adopt(report adminapi.Status) Step {
	for _, server := range report.Members {
		address, err := memberAddress(server.Address)
		if err != nil || m.recorded(address) {
			continue
		}
		if node := m.Nodes[address]; node != "" && !m.Foreign[node] && len(m.Status.Members) < m.Want {
			return Step{
				Action: ActionRecord, Message: fmt.Sprintf("the database has a member on node %s, which is taken up", node),
				Members: append(slices.Clone(m.Status.Members), v1alpha1.DatabaseMember{Node: node, Address: address.String()}),
			}
		}
	}
	return Step{}
}

// unrecordedMembers handles members that the database lists and the record does not: it records or kicks them. A member that lost its data
// before its first report joined again under the same address, and the database lists both.
func (m Membership) unrecordedMembers(leader adminapi.Status) Step {
	if s := m.adopt(leader); s.Action != ActionNone {
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
	return Step{}
}

// superseded reports whether the database also lists the recorded member at the server's address.
func (m Membership) superseded(leader adminapi.Status, server adminapi.Member, address netip.Addr) bool {
	at := slices.IndexFunc(m.Status.Members, func(d v1alpha1.DatabaseMember) bool { return AddressOf(d) == address })
	if at < 0 || m.Status.Members[at].ServerID == "" {
		return false
	}
	recorded := func(s adminapi.Member) bool { return strings.HasPrefix(m.Status.Members[at].ServerID, s.ServerID) }
	return !recorded(server) && slices.ContainsFunc(leader.Members, func(s adminapi.Member) bool { return s.Address == server.Address && recorded(s) })
}

// whyMoved returns why the recorded address of a member is not its node's.
func (m Membership) whyMoved(node string) string {
	for _, name := range m.Nodes {
		if name == node {
			return "has another address now"
		}
	}
	return "was deleted"
}

// replaceLost handles recorded members whose node is deleted or has another address, or whose data is lost.
func (m Membership) replaceLost(leader adminapi.Status) Step {
	for i, member := range m.Status.Members {
		server, listed := m.listed(leader, member)
		gone := m.Nodes[AddressOf(member)] != member.Node
		switch {
		case gone && listed:
			return m.kick(leader, server, fmt.Sprintf("the member of node %s, which %s,", member.Node, m.whyMoved(member.Node)))
		case gone && m.canForget(leader, member):
			return m.forget(i)
		case gone && len(m.Status.Members) > m.Want:
			continue // another member is removed first
		case gone && m.Free == nil:
			return Step{Stuck: true, Message: fmt.Sprintf("node %s, which held a member, %s, and there is no other node "+
				"for its place: label a node, or set a lower spec.central.replicas", member.Node, m.whyMoved(member.Node))}
		case gone:
			members := slices.Clone(m.Status.Members)
			members[i] = m.joiner(m.Free.Name, m.Free.Address.String())
			return Step{
				Action: ActionRecord, Members: members,
				Message: fmt.Sprintf("node %s takes the place of node %s, which %s", m.Free.Name, member.Node, m.whyMoved(member.Node)),
			}
		case m.Reports[member.Node].NeedsRejoin && listed:
			return m.kick(leader, server, fmt.Sprintf("the member of node %s, whose data is lost,", member.Node))
		case m.Reports[member.Node].NeedsRejoin && m.canForget(leader, member):
			return m.forget(i) // it has left
		case m.Reports[member.Node].NeedsRejoin:
			members := slices.Clone(m.Status.Members)
			members[i] = m.joiner(member.Node, member.Address)
			return Step{Action: ActionRecord, Members: members, Message: fmt.Sprintf("the member of node %s joins again", member.Node)}
		}
	}
	return Step{}
}

// joining waits for members that were asked to join, one at a time. It does not wait for a surplus member that has not
// joined.
func (m Membership) joining(leader adminapi.Status) Step {
	for i, member := range m.Status.Members {
		if member.ServerID != "" {
			continue
		}
		if _, listed := m.listed(leader, member); len(m.Status.Members) > m.Want && !listed {
			if m.canForget(leader, member) {
				return m.forget(i)
			}
			continue
		}
		if m.Silent[member.Node] {
			return m.elsewhere(leader, i)
		}
		return Step{Message: fmt.Sprintf("the member of node %s joins", member.Node)}
	}
	return Step{}
}

// elsewhere replaces a node that stopped answering before its member joined. Unlike a member's node, such a node has no
// data of the cluster. The server is first removed from the cluster, if the leader lists it already.
func (m Membership) elsewhere(leader adminapi.Status, i int) Step {
	member := m.Status.Members[i]
	if server, listed := m.listed(leader, member); listed {
		return m.kick(leader, server, fmt.Sprintf("the member of node %s, which does not answer and has not joined,", member.Node))
	}
	if m.Free == nil {
		return Step{Stuck: true, Message: fmt.Sprintf("node %s, whose member has yet to join, does not answer, and there is no other node for its place: "+
			"start it, label another, or set a lower spec.central.replicas", member.Node)}
	}
	members := slices.Clone(m.Status.Members)
	members[i] = m.joiner(m.Free.Name, m.Free.Address.String())
	return Step{
		Action: ActionRecord, Members: members,
		Message: fmt.Sprintf("node %s takes the place of node %s, which does not answer and whose member has not joined", m.Free.Name, member.Node),
	}
}

// shrink removes the member whose pod the StatefulSet deletes when there is one replica less.
func (m Membership) shrink(leader adminapi.Status) Step {
	if len(m.Status.Members) <= m.Want {
		return Step{}
	}
	at := slices.IndexFunc(m.Status.Members, func(d v1alpha1.DatabaseMember) bool { return d.Node == m.Last })
	if at < 0 {
		return Step{Message: "there is a member too many, and the last pod has no node yet"}
	}
	member := m.Status.Members[at]
	server, listed := m.listed(leader, member)
	if !listed {
		return m.forget(at)
	}
	if m.Silent[member.Node] { // it would not get the request
		return m.kick(leader, server, fmt.Sprintf("the member of node %s, which does not answer and is too many,", member.Node))
	}
	if !m.keepsQuorum(leader, server) {
		return Step{Message: fmt.Sprintf("the member of node %s stays until enough of the others serve", member.Node)}
	}
	return Step{Action: ActionLeave, Node: member.Node, Message: fmt.Sprintf("the member of node %s leaves", member.Node)}
}

// grow adds a member once all others serve.
func (m Membership) grow(leader adminapi.Status) Step {
	if len(m.Status.Members) >= m.Want {
		return Step{}
	}
	for _, server := range leader.Members {
		if !m.serves(server) {
			return Step{Message: fmt.Sprintf("a member joins once all others serve; that at %s does not", server.Address)}
		}
	}
	if m.Free == nil {
		return Step{Stuck: true, Message: fmt.Sprintf("there are nodes for %d members of %d: label a node, or set a lower spec.central.replicas",
			len(m.Status.Members), m.Want)}
	}
	return Step{
		Action: ActionRecord, Members: append(slices.Clone(m.Status.Members), m.joiner(m.Free.Name, m.Free.Address.String())),
		Message: fmt.Sprintf("a member joins on node %s", m.Free.Name),
	}
}

// kick removes a server through the leader, if the others keep their quorum without it. A leader is not removed.
func (m Membership) kick(leader adminapi.Status, server adminapi.Member, who string) Step {
	if server.Address == leader.Address && strings.HasPrefix(leader.ServerID, server.ServerID) {
		return Step{Message: who + " leads, and stays until another one does"}
	}
	if !m.keepsQuorum(leader, server) {
		return Step{Message: who + " stays until enough of the others serve"}
	}
	name := server.Address
	if slices.ContainsFunc(leader.Members, func(s adminapi.Member) bool { return s.Address == name && s != server }) {
		name = server.ServerID
	}
	return Step{Action: ActionKick, Server: name, Message: who + " is taken out of the cluster"}
}

// keepsQuorum reports whether more than half of the other members serve.
func (m Membership) keepsQuorum(leader adminapi.Status, without adminapi.Member) bool {
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
func (m Membership) serves(server adminapi.Member) bool {
	for _, report := range m.Reports {
		if report.Address == server.Address && strings.HasPrefix(report.ServerID, server.ServerID) && report.Connected {
			return true
		}
	}
	return false
}

// joiner returns the record of a member that has not joined yet.
func (m Membership) joiner(node, address string) v1alpha1.DatabaseMember {
	since := m.Now
	if m.Status.Since != nil && since.Before(m.Status.Since) {
		since = *m.Status.Since // the clock was set back
	}
	for _, former := range m.Status.Members {
		if former.Node == node && former.Since != nil && !since.After(former.Since.Time) {
			since = metav1.NewTime(former.Since.Add(time.Second)) // files of the former membership must be older
		}
	}
	return v1alpha1.DatabaseMember{Node: node, Address: address, Since: &since}
}

// canForget reports whether there is a surplus member and this one may be dropped from the record, which removes one pod.
// The StatefulSet deletes the pod with the highest ordinal, maybe of another member. That member then restarts in the
// dropped member's place, so the others must have a quorum without it.
func (m Membership) canForget(leader adminapi.Status, member v1alpha1.DatabaseMember) bool {
	if len(m.Status.Members) <= m.Want {
		return false
	}
	serving := 0
	for _, server := range leader.Members {
		if m.serves(server) {
			serving++
		}
	}
	_, runs := m.Reports[member.Node]
	return member.Node == m.Last || m.Last == "" && !runs || len(leader.Members) == 1 || 2*(serving-1) > len(leader.Members)
}

// forget drops a member from the record.
func (m Membership) forget(i int) Step {
	node := m.Status.Members[i].Node
	return Step{
		Action: ActionRecord, Members: slices.Delete(slices.Clone(m.Status.Members), i, i+1),
		Message: fmt.Sprintf("node %s no longer holds a member", node),
	}
}

// listed returns the leader's entry of a recorded member, if there is one.
func (m Membership) listed(leader adminapi.Status, member v1alpha1.DatabaseMember) (server adminapi.Member, found bool) {
	at := slices.IndexFunc(leader.Members, func(s adminapi.Member) bool {
		address, err := memberAddress(s.Address)
		return err == nil && address == AddressOf(member)
	})
	if at < 0 {
		return adminapi.Member{}, false
	}
	return leader.Members[at], true
}

func (m Membership) recorded(address netip.Addr) bool {
	return slices.ContainsFunc(m.Status.Members, func(d v1alpha1.DatabaseMember) bool { return AddressOf(d) == address })
}
