// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
	"github.com/kiln-net/kiln/internal/testing/seed"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

func raftAddress(node int) string { return fmt.Sprintf("ssl:192.0.2.%d:6643", node) }
func nodeOf(i int) string         { return fmt.Sprintf("n%d", i) }

func recordOf(i int, server string) v1alpha1.DatabaseMember {
	return v1alpha1.DatabaseMember{Node: nodeOf(i), Address: fmt.Sprintf("192.0.2.%d", i), ServerID: server}
}

// clusterOf returns a database of members 1 to n, all serving and led by 1, in a Kubernetes cluster of nodes 1 to nodes.
func clusterOf(n, nodes, want int) Membership {
	m := Membership{
		Want: want, Status: v1alpha1.DatabaseStatus{ClusterID: "c", Leader: nodeOf(1)}, Reports: map[string]adminapi.Status{},
		Nodes: map[netip.Addr]string{}, Last: nodeOf(n), Now: metav1.Unix(1000, 0),
	}
	var members []adminapi.Member
	for i := 1; i <= n; i++ {
		members = append(members, adminapi.Member{ServerID: fmt.Sprintf("s%d00", i), Address: raftAddress(i)})
		m.Status.Members = append(m.Status.Members, recordOf(i, fmt.Sprintf("s%d00-long", i)))
	}
	for i := 1; i <= n; i++ {
		role := adminapi.RoleFollower
		if i == 1 {
			role = adminapi.RoleLeader
		}
		m.Reports[nodeOf(i)] = adminapi.Status{ClusterID: "c", ServerID: m.Status.Members[i-1].ServerID, Address: raftAddress(i), Role: role, Connected: true, Members: members}
	}
	for i := 1; i <= nodes; i++ {
		m.Nodes[netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i))] = nodeOf(i)
	}
	if nodes > n {
		m.Free = freeNode(n + 1)
	}
	return m
}

func freeNode(i int) *Node {
	return &Node{Name: nodeOf(i), Address: netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i))}
}

func TestTooFewNodesAreReported(t *testing.T) {
	m := clusterOf(1, 1, 3)
	mistakes.Sees(t, 9, m.Next().Message)
}

func TestTheNextStepOfAMembership(t *testing.T) {
	lose := func(m *Membership, i int) {
		delete(m.Nodes, netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i)))
		delete(m.Reports, nodeOf(i))
	}
	unlist := func(m *Membership, i int) {
		for node, r := range m.Reports {
			r.Members = slices.DeleteFunc(slices.Clone(r.Members), func(s adminapi.Member) bool { return s.Address == raftAddress(i) })
			m.Reports[node] = r
		}
	}
	silentJoiner := func(m *Membership) {
		m.Status.Members[1].ServerID, m.Silent = "", map[string]bool{"n2": true}
		for node, r := range m.Reports {
			r.Members = r.Members[:1]
			m.Reports[node] = r
		}
		delete(m.Reports, "n2")
	}
	for _, c := range []struct {
		name           string
		n, nodes, want int
		change         func(*Membership)
		action         Action
		about          string // part of the message
		members        string // nodes recorded after the step
		stuck          bool
	}{
		{"all is as wanted", 3, 3, 3, nil, ActionNone, "", "", false},
		{"nothing before the database is there", 1, 3, 3, func(m *Membership) { m.Status.ClusterID = "" }, ActionNone, "", "", false},
		{"nothing without a leader", 3, 5, 5, func(m *Membership) { m.Status.Leader = "" }, ActionNone, "", "", false},
		{"a member more", 1, 3, 3, nil, ActionRecord, "joins on node n2", "n1 n2", false},
		{"one at a time", 2, 3, 3, func(m *Membership) { m.Status.Members[1].ServerID = "" }, ActionNone, "n2 joins", "", false},
		{"whose place another node takes when its own falls silent before it has joined", 2, 3, 3, silentJoiner, ActionRecord, "n3 takes the place of node n2, which does not answer", "n1 n3", false},
		{"after the interrupted change is undone", 3, 4, 3, func(m *Membership) {
			m.Status.Members[1].ServerID, m.Silent = "", map[string]bool{"n2": true}
			delete(m.Reports, "n2")
		}, ActionKick, "n2, which does not answer and has not joined", "", false},
		{"if there is one that answers", 2, 2, 3, silentJoiner, ActionNone, "start it, label another", "", true},
		{"a member that has joined stays, however silent its node", 3, 4, 3, func(m *Membership) {
			m.Silent = map[string]bool{"n2": true}
			delete(m.Reports, "n2")
		}, ActionNone, "", "", false},
		{"none while another does not serve", 3, 5, 5, func(m *Membership) { delete(m.Reports, "n3") }, ActionNone, "once all others serve", "", false},
		{"no node for it", 2, 2, 3, nil, ActionNone, "label a node", "", true},
		{"one member less: the member of the last pod", 5, 5, 3, nil, ActionLeave, "n5 leaves", "", false},
		{"it is taken out when its node does not answer", 5, 5, 3, func(m *Membership) {
			m.Silent = map[string]bool{"n5": true}
			delete(m.Reports, "n5")
		}, ActionKick, "n5, which does not answer and is too many", "", false},
		{"which may lead", 3, 3, 1, func(m *Membership) { m.Last = "n1" }, ActionLeave, "n1 leaves", "", false},
		{"it stays while the others are too few", 3, 3, 1, func(m *Membership) { delete(m.Reports, "n2") }, ActionNone, "stays until", "", false},
		{"once it has left it is forgotten", 3, 3, 1, func(m *Membership) { unlist(m, 3) }, ActionRecord, "n3 no longer holds a member", "n1 n2", false},
		{"a deleted node: its member is kicked", 3, 4, 3, func(m *Membership) { lose(m, 2) }, ActionKick, "node n2, which was deleted,", "", false},
		{"not if that would be too many", 3, 4, 3, func(m *Membership) { lose(m, 2); delete(m.Reports, "n3") }, ActionNone, "stays until", "", false},
		{"and its place given to another", 3, 4, 3, func(m *Membership) { lose(m, 2); unlist(m, 2) }, ActionRecord, "n4 takes the place", "n1 n4 n3", false},
		{"if there is one", 3, 3, 3, func(m *Membership) { lose(m, 2); unlist(m, 2) }, ActionNone, "no other node", "", true},
		{"or to nobody", 5, 5, 3, func(m *Membership) { lose(m, 2); unlist(m, 2) }, ActionRecord, "n2 no longer holds a member", "n1 n3 n4 n5", false},
		{"but the last one goes first when a restart is too much", 3, 3, 1, func(m *Membership) { lose(m, 2); unlist(m, 2) }, ActionLeave, "n3 leaves", "", false},
		{"a node with another address is another place", 3, 4, 3, func(m *Membership) {
			lose(m, 2)
			m.Nodes[netip.MustParseAddr("192.0.2.77")] = "n2"
		}, ActionKick, "node n2, which has another address now,", "", false},
		{"lost data: kicked", 3, 3, 3, func(m *Membership) { m.Reports["n3"] = adminapi.Status{NeedsRejoin: true} }, ActionKick, "data", "", false},
		{"and requested to rejoin", 3, 3, 3, func(m *Membership) {
			m.Reports["n3"] = adminapi.Status{NeedsRejoin: true}
			unlist(m, 3)
		}, ActionRecord, "n3 joins again", "n1 n2 n3", false},
		{"an unrecorded member is kicked", 3, 3, 3, func(m *Membership) {
			m.Status.Members = m.Status.Members[:2]
			m.Want = 2
		}, ActionKick, "unrecorded", "", false},
		{"or taken up, if it is wanted", 3, 3, 3, func(m *Membership) { m.Status.Members = m.Status.Members[:2] }, ActionRecord, "taken up", "n1 n2 n3", false},
		{"and its node is one for databases", 3, 3, 3, func(m *Membership) {
			m.Status.Members, m.Foreign = m.Status.Members[:2], map[string]bool{"n3": true}
		}, ActionKick, "unrecorded", "", false},
		{"also without a leader", 3, 3, 3, func(m *Membership) {
			m.Status.Members, m.Status.Leader = m.Status.Members[:1], ""
			m.Reports = map[string]adminapi.Status{"n1": {ClusterID: "c", Members: m.Reports["n1"].Members}}
		}, ActionRecord, "taken up", "n1 n2", false},
		{"a leader is not kicked", 3, 4, 3, func(m *Membership) { delete(m.Nodes, netip.MustParseAddr("192.0.2.1")) }, ActionNone, "leads", "", false},
		{"a surplus member that has not joined is forgotten", 5, 5, 3, func(m *Membership) {
			unlist(m, 2)
			m.Status.Members[1].ServerID = ""
		}, ActionRecord, "n2 no longer holds a member", "n1 n3 n4 n5", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := clusterOf(c.n, c.nodes, c.want)
			if c.change != nil {
				c.change(&m)
			}
			got := m.Next()
			if got.Action != c.action || got.Stuck != c.stuck || !strings.Contains(got.Message, c.about) || (c.about == "") != (got.Message == "") {
				t.Errorf("got %+v", got)
			}
			var nodes []string
			for _, d := range got.Members {
				nodes = append(nodes, d.Node)
			}
			if strings.Join(nodes, " ") != c.members {
				t.Errorf("records %q, want %q", nodes, c.members)
			}
		})
	}
}

// lab is a model of a Raft cluster, its nodes and the StatefulSet, on which the steps act.
type lab struct {
	*testing.T
	m      Membership
	nodes  map[int]bool // in the API; their kubelets run
	listed []int        // members of the Raft cluster
	silent map[int]bool // nodes that do not answer for a while
	data   map[int]bool // nodes whose file belongs to a listed member
	pods   []int        // node by ordinal; 0 is none
	starts map[int]bool // nodes whose pod has just been put there
	next   int
}

func newLab(t *testing.T) *lab {
	l := &lab{T: t, nodes: map[int]bool{1: true, 2: true, 3: true, 4: true, 5: true}, listed: []int{1}, data: map[int]bool{1: true}, silent: map[int]bool{}, starts: map[int]bool{}, next: 6}
	l.m = Membership{Want: 1, Status: v1alpha1.DatabaseStatus{ClusterID: "c", Members: []v1alpha1.DatabaseMember{recordOf(1, "s")}}}
	return l
}

func (l *lab) at(d v1alpha1.DatabaseMember) (i int) {
	if _, err := fmt.Sscanf(d.Node, "n%d", &i); err != nil {
		l.Fatal(err)
	}
	return i
}

// schedule acts as the StatefulSet controller and the scheduler, and deletes pods on nodes without a member as the
// operator does.
func (l *lab) schedule() {
	n := len(l.m.Status.Members)
	if len(l.pods) > n {
		l.pods = l.pods[:n]
	}
	for len(l.pods) < n {
		l.pods = append(l.pods, 0)
	}
	for ordinal, on := range l.pods {
		recorded := slices.ContainsFunc(l.m.Status.Members, func(d v1alpha1.DatabaseMember) bool { return l.at(d) == on })
		if on != 0 && l.nodes[on] && recorded {
			continue
		}
		l.pods[ordinal] = 0
		for _, d := range l.m.Status.Members {
			if i := l.at(d); l.nodes[i] && !slices.Contains(l.pods, i) {
				l.pods[ordinal], l.starts[i] = i, true
				break
			}
		}
	}
}

// up returns the members that run with their data, and one member that has yet to join.
func (l *lab) up() (up []int, joins int) {
	for _, i := range l.pods {
		if i == 0 || !l.nodes[i] || l.silent[i] || l.starts[i] {
			continue
		}
		at := slices.IndexFunc(l.m.Status.Members, func(d v1alpha1.DatabaseMember) bool { return l.at(d) == i })
		switch {
		case slices.Contains(l.listed, i) && l.data[i]:
			up = append(up, i)
		case !slices.Contains(l.listed, i) && at >= 0 && l.m.Status.Members[at].ServerID == "":
			joins = i
		}
	}
	return up, joins
}

func (l *lab) quorum() bool {
	up, _ := l.up()
	return 2*len(up) > len(l.listed)
}

// observe fills in the input of a pass.
func (l *lab) observe() {
	l.m.Silent = map[string]bool{}
	l.m.Reports, l.m.Nodes, l.m.Free, l.m.Last, l.m.Status.Leader = map[string]adminapi.Status{}, map[netip.Addr]string{}, nil, "", ""
	for i := range l.nodes {
		l.m.Nodes[netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i))] = nodeOf(i)
		l.m.Silent[nodeOf(i)] = l.silent[i]
		if !l.silent[i] && !slices.ContainsFunc(l.m.Status.Members, func(d v1alpha1.DatabaseMember) bool { return d.Node == nodeOf(i) }) {
			l.m.Free = freeNode(i)
		}
	}
	var members []adminapi.Member
	for _, i := range l.listed {
		members = append(members, adminapi.Member{ServerID: "s", Address: raftAddress(i)})
	}
	up, _ := l.up()
	for _, i := range l.pods {
		if i != 0 && !l.silent[i] && !slices.Contains(up, i) {
			l.m.Reports[nodeOf(i)] = adminapi.Status{Waiting: "w", NeedsRejoin: !l.data[i]}
		}
		if l.m.Last = ""; i != 0 {
			l.m.Last = nodeOf(i)
		}
	}
	for n, i := range up {
		report := adminapi.Status{ClusterID: "c", ServerID: "s", Address: raftAddress(i), Role: adminapi.RoleFollower, Connected: l.quorum(), Members: members}
		if n == 0 && l.quorum() {
			report.Role, l.m.Status.Leader = adminapi.RoleLeader, nodeOf(i)
		}
		l.m.Reports[nodeOf(i)] = report
		at := slices.IndexFunc(l.m.Status.Members, func(d v1alpha1.DatabaseMember) bool { return l.at(d) == i })
		if at >= 0 && report.Connected {
			l.m.Status.Members[at].ServerID = "s"
		}
	}
}

// pass is one pass of the operator, followed by the reaction of the database.
func (l *lab) pass() Step {
	l.schedule()
	l.starts = map[int]bool{}
	if _, joins := l.up(); joins != 0 && l.quorum() {
		l.listed, l.data[joins] = append(l.listed, joins), true
	}
	l.observe()
	had := l.quorum()
	step := l.m.Next()
	switch step.Action {
	case ActionRecord:
		l.m.Status.Members = step.Members
	case ActionKick, ActionLeave:
		server := step.Server
		if step.Action == ActionLeave {
			server = l.m.Reports[step.Node].Address
		}
		at := slices.IndexFunc(l.listed, func(i int) bool { return raftAddress(i) == server })
		l.data[l.listed[at]] = false
		l.listed = slices.Delete(l.listed, at, at+1)
	case ActionNone:
	}
	l.schedule()
	if had && !l.quorum() && step.Action != ActionNone && len(l.listed) > 1 { // the only member may have to restart
		l.Fatalf("the step %+v took the quorum: members %v, up %v, pods %v", step, l.listed, first(l.up()), l.pods)
	}
	return step
}

func first(up []int, _ int) []int { return up }

// TestMembershipsConverge lets nodes and disks fail at random while the number of members changes. No step may lose the
// quorum. At the end there are as many members as requested, each with a pod and data.
func TestMembershipsConverge(t *testing.T) {
	seed.Histories(t, nil, 1000, func(t *testing.T, _ uint64, random *rand.Rand) {
		l := newLab(t)
		l.m.Now = metav1.Unix(1000, 0)
		var said []string
		for range 60 {
			up, _ := l.up()
			spare := 2*(len(up)-1) > len(l.listed) // one more may fail
			switch random.IntN(9) {
			case 0:
				l.m.Want = []int{1, 3, 5}[random.IntN(3)]
			case 1: // a node is replaced by another
				if victim := 1 + random.IntN(l.next-1); l.nodes[victim] && (spare || !slices.Contains(l.listed, victim)) {
					delete(l.nodes, victim)
					l.nodes[l.next] = true
					l.next++
				}
			case 2:
				if spare {
					l.data[up[random.IntN(len(up))]] = false
				}
			case 3:
				if victim := 1 + random.IntN(l.next-1); l.nodes[victim] && (l.silent[victim] || spare || !slices.Contains(l.listed, victim)) {
					l.silent[victim] = !l.silent[victim]
				}
			default:
				said = append(said, l.pass().Message)
			}
		}
		l.silent = map[int]bool{}
		for range 60 {
			if s := l.pass(); s.Message != "" {
				said = append(said, s.Message)
			}
		}
		up, _ := l.up()
		if len(l.listed) != l.m.Want || len(l.m.Status.Members) != l.m.Want || len(up) != l.m.Want {
			t.Fatalf("%d members wanted; the cluster has %v, recorded %v, up %v, pods %v, nodes %v\n%s", l.m.Want, l.listed,
				l.m.Status.Members, up, l.pods, l.nodes, strings.Join(said, "\n"))
		}
	})
}

// A member that lost its data before its first report joined again: the database lists two servers at its address.
func TestAFormerMemberAtAnAddressIsKickedByItsID(t *testing.T) {
	for _, at := range []int{1, 2} { // 1 leads
		m := clusterOf(3, 3, 3)
		for node, report := range m.Reports {
			report.Members = append([]adminapi.Member{{ServerID: "old1", Address: raftAddress(at)}}, report.Members...)
			m.Reports[node] = report
		}
		if s := m.Next(); s.Action != ActionKick || s.Server != "old1" {
			t.Errorf("at the address of member %d: %+v, want a kick of old1", at, s)
		}
		m.Status.Members[at-1].ServerID = "" // its report is missing: either of them may be the present one
		if s := m.Next(); s.Action == ActionKick {
			t.Errorf("at the address of member %d: %+v, want no kick", at, s)
		}
	}
}

// Records have times of seconds. A file of the member that was removed must be older than the record of the new one.
func TestAMemberThatJoinsAgainAtOnceHasALaterRecord(t *testing.T) {
	m := clusterOf(3, 3, 3)
	m.Status.Members[2].Since = new(m.Now)
	m.Reports["n3"] = adminapi.Status{NeedsRejoin: true}
	for node, r := range m.Reports {
		r.Members = slices.DeleteFunc(slices.Clone(r.Members), func(s adminapi.Member) bool { return s.Address == raftAddress(3) })
		m.Reports[node] = r
	}
	step := m.Next()
	if step.Action != ActionRecord || !m.Now.Before(step.Members[2].Since) {
		t.Errorf("%v: %+v, and now is %s", step.Action, step.Members, m.Now)
	}
}
