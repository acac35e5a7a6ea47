// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/seed"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

func raftAddress(node int) string { return fmt.Sprintf("ssl:192.0.2.%d:6643", node) }
func nodeOf(i int) string         { return fmt.Sprintf("n%d", i) }

func recordOf(i int, server string) v1alpha1.DatabaseMember {
	return v1alpha1.DatabaseMember{Node: nodeOf(i), Address: fmt.Sprintf("192.0.2.%d", i), ServerID: server}
}

// clusterOf returns a database of members 1 to n, all serving and led by 1, in a Kubernetes cluster of nodes 1 to nodes.
func clusterOf(n, nodes, want int) membership {
	m := membership{
		want: want, status: v1alpha1.DatabaseStatus{ClusterID: "c", Leader: nodeOf(1)}, reports: map[string]adminapi.Status{},
		nodes: map[netip.Addr]string{}, last: nodeOf(n), now: metav1.Unix(1000, 0),
	}
	var members []adminapi.Member
	for i := 1; i <= n; i++ {
		members = append(members, adminapi.Member{ServerID: fmt.Sprintf("s%d00", i), Address: raftAddress(i)})
		m.status.Members = append(m.status.Members, recordOf(i, fmt.Sprintf("s%d00-long", i)))
	}
	for i := 1; i <= n; i++ {
		role := adminapi.RoleFollower
		if i == 1 {
			role = adminapi.RoleLeader
		}
		m.reports[nodeOf(i)] = adminapi.Status{ClusterID: "c", ServerID: m.status.Members[i-1].ServerID, Address: raftAddress(i), Role: role, Connected: true, Members: members}
	}
	for i := 1; i <= nodes; i++ {
		m.nodes[netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i))] = nodeOf(i)
	}
	if nodes > n {
		m.free = freeNode(n + 1)
	}
	return m
}

func freeNode(i int) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeOf(i)}, Status: corev1.NodeStatus{
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", i)}},
	}}
}

func TestTheNextStepOfAMembership(t *testing.T) {
	lose := func(m *membership, i int) {
		delete(m.nodes, netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i)))
		delete(m.reports, nodeOf(i))
	}
	unlist := func(m *membership, i int) {
		for node, r := range m.reports {
			r.Members = slices.DeleteFunc(slices.Clone(r.Members), func(s adminapi.Member) bool { return s.Address == raftAddress(i) })
			m.reports[node] = r
		}
	}
	silentJoiner := func(m *membership) {
		m.status.Members[1].ServerID, m.silent = "", map[string]bool{"n2": true}
		for node, r := range m.reports {
			r.Members = r.Members[:1]
			m.reports[node] = r
		}
		delete(m.reports, "n2")
	}
	for _, c := range []struct {
		name           string
		n, nodes, want int
		change         func(*membership)
		action         memberAction
		about          string // part of the message
		members        string // nodes recorded after the step
		stuck          bool
	}{
		{"all is as wanted", 3, 3, 3, nil, actionNone, "", "", false},
		{"nothing before the database is there", 1, 3, 3, func(m *membership) { m.status.ClusterID = "" }, actionNone, "", "", false},
		{"nothing without a leader", 3, 5, 5, func(m *membership) { m.status.Leader = "" }, actionNone, "", "", false},
		{"a member more", 1, 3, 3, nil, actionRecord, "joins on node n2", "n1 n2", false},
		{"one at a time", 2, 3, 3, func(m *membership) { m.status.Members[1].ServerID = "" }, actionNone, "n2 joins", "", false},
		{"whose place another node takes when its own falls silent before it has joined", 2, 3, 3, silentJoiner, actionRecord, "n3 takes the place of node n2, which does not answer", "n1 n3", false},
		{"after the interrupted change is undone", 3, 4, 3, func(m *membership) {
			m.status.Members[1].ServerID, m.silent = "", map[string]bool{"n2": true}
			delete(m.reports, "n2")
		}, actionKick, "n2, which does not answer and has not joined", "", false},
		{"if there is one that answers", 2, 2, 3, silentJoiner, actionNone, "start it, label another", "", true},
		{"a member that has joined stays, however silent its node", 3, 4, 3, func(m *membership) {
			m.silent = map[string]bool{"n2": true}
			delete(m.reports, "n2")
		}, actionNone, "", "", false},
		{"none while another does not serve", 3, 5, 5, func(m *membership) { delete(m.reports, "n3") }, actionNone, "once all others serve", "", false},
		{"no node for it", 2, 2, 3, nil, actionNone, "label a node", "", true},
		{"one member less: the member of the last pod", 5, 5, 3, nil, actionLeave, "n5 leaves", "", false},
		{"it is taken out when its node does not answer", 5, 5, 3, func(m *membership) {
			m.silent = map[string]bool{"n5": true}
			delete(m.reports, "n5")
		}, actionKick, "n5, which does not answer and is too many", "", false},
		{"which may lead", 3, 3, 1, func(m *membership) { m.last = "n1" }, actionLeave, "n1 leaves", "", false},
		{"it stays while the others are too few", 3, 3, 1, func(m *membership) { delete(m.reports, "n2") }, actionNone, "stays until", "", false},
		{"once it has left it is forgotten", 3, 3, 1, func(m *membership) { unlist(m, 3) }, actionRecord, "n3 no longer holds a member", "n1 n2", false},
		{"a deleted node: its member is kicked", 3, 4, 3, func(m *membership) { lose(m, 2) }, actionKick, "node n2, which was deleted,", "", false},
		{"not if that would be too many", 3, 4, 3, func(m *membership) { lose(m, 2); delete(m.reports, "n3") }, actionNone, "stays until", "", false},
		{"and its place given to another", 3, 4, 3, func(m *membership) { lose(m, 2); unlist(m, 2) }, actionRecord, "n4 takes the place", "n1 n4 n3", false},
		{"if there is one", 3, 3, 3, func(m *membership) { lose(m, 2); unlist(m, 2) }, actionNone, "no other node", "", true},
		{"or to nobody", 5, 5, 3, func(m *membership) { lose(m, 2); unlist(m, 2) }, actionRecord, "n2 no longer holds a member", "n1 n3 n4 n5", false},
		{"but the last one goes first when a restart is too much", 3, 3, 1, func(m *membership) { lose(m, 2); unlist(m, 2) }, actionLeave, "n3 leaves", "", false},
		{"a node with another address is another place", 3, 4, 3, func(m *membership) {
			lose(m, 2)
			m.nodes[netip.MustParseAddr("192.0.2.77")] = "n2"
		}, actionKick, "node n2, which has another address now,", "", false},
		{"lost data: kicked", 3, 3, 3, func(m *membership) { m.reports["n3"] = adminapi.Status{NeedsRejoin: true} }, actionKick, "data", "", false},
		{"and requested to rejoin", 3, 3, 3, func(m *membership) {
			m.reports["n3"] = adminapi.Status{NeedsRejoin: true}
			unlist(m, 3)
		}, actionRecord, "n3 joins again", "n1 n2 n3", false},
		{"an unrecorded member is kicked", 3, 3, 3, func(m *membership) {
			m.status.Members = m.status.Members[:2]
			m.want = 2
		}, actionKick, "unrecorded", "", false},
		{"or taken up, if it is wanted", 3, 3, 3, func(m *membership) { m.status.Members = m.status.Members[:2] }, actionRecord, "taken up", "n1 n2 n3", false},
		{"also without a leader", 3, 3, 3, func(m *membership) {
			m.status.Members, m.status.Leader = m.status.Members[:1], ""
			m.reports = map[string]adminapi.Status{"n1": {ClusterID: "c", Members: m.reports["n1"].Members}}
		}, actionRecord, "taken up", "n1 n2", false},
		{"a leader is not kicked", 3, 4, 3, func(m *membership) { delete(m.nodes, netip.MustParseAddr("192.0.2.1")) }, actionNone, "leads", "", false},
		{"a surplus member that has not joined is forgotten", 5, 5, 3, func(m *membership) {
			unlist(m, 2)
			m.status.Members[1].ServerID = ""
		}, actionRecord, "n2 no longer holds a member", "n1 n3 n4 n5", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := clusterOf(c.n, c.nodes, c.want)
			if c.change != nil {
				c.change(&m)
			}
			got := m.next()
			if got.action != c.action || got.stuck != c.stuck || !strings.Contains(got.message, c.about) || (c.about == "") != (got.message == "") {
				t.Errorf("got %+v", got)
			}
			var nodes []string
			for _, d := range got.members {
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
	m      membership
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
	l.m = membership{want: 1, status: v1alpha1.DatabaseStatus{ClusterID: "c", Members: []v1alpha1.DatabaseMember{recordOf(1, "s")}}}
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
	n := len(l.m.status.Members)
	if len(l.pods) > n {
		l.pods = l.pods[:n]
	}
	for len(l.pods) < n {
		l.pods = append(l.pods, 0)
	}
	for ordinal, on := range l.pods {
		recorded := slices.ContainsFunc(l.m.status.Members, func(d v1alpha1.DatabaseMember) bool { return l.at(d) == on })
		if on != 0 && l.nodes[on] && recorded {
			continue
		}
		l.pods[ordinal] = 0
		for _, d := range l.m.status.Members {
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
		at := slices.IndexFunc(l.m.status.Members, func(d v1alpha1.DatabaseMember) bool { return l.at(d) == i })
		switch {
		case slices.Contains(l.listed, i) && l.data[i]:
			up = append(up, i)
		case !slices.Contains(l.listed, i) && at >= 0 && l.m.status.Members[at].ServerID == "":
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
	l.m.silent = map[string]bool{}
	l.m.reports, l.m.nodes, l.m.free, l.m.last, l.m.status.Leader = map[string]adminapi.Status{}, map[netip.Addr]string{}, nil, "", ""
	for i := range l.nodes {
		l.m.nodes[netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i))] = nodeOf(i)
		l.m.silent[nodeOf(i)] = l.silent[i]
		if !l.silent[i] && !slices.ContainsFunc(l.m.status.Members, func(d v1alpha1.DatabaseMember) bool { return d.Node == nodeOf(i) }) {
			l.m.free = freeNode(i)
		}
	}
	var members []adminapi.Member
	for _, i := range l.listed {
		members = append(members, adminapi.Member{ServerID: "s", Address: raftAddress(i)})
	}
	up, _ := l.up()
	for _, i := range l.pods {
		if i != 0 && !l.silent[i] && !slices.Contains(up, i) {
			l.m.reports[nodeOf(i)] = adminapi.Status{Waiting: "w", NeedsRejoin: !l.data[i]}
		}
		if l.m.last = ""; i != 0 {
			l.m.last = nodeOf(i)
		}
	}
	for n, i := range up {
		report := adminapi.Status{ClusterID: "c", ServerID: "s", Address: raftAddress(i), Role: adminapi.RoleFollower, Connected: l.quorum(), Members: members}
		if n == 0 && l.quorum() {
			report.Role, l.m.status.Leader = adminapi.RoleLeader, nodeOf(i)
		}
		l.m.reports[nodeOf(i)] = report
		at := slices.IndexFunc(l.m.status.Members, func(d v1alpha1.DatabaseMember) bool { return l.at(d) == i })
		if at >= 0 && report.Connected {
			l.m.status.Members[at].ServerID = "s"
		}
	}
}

// pass is one pass of the operator, followed by the reaction of the database.
func (l *lab) pass() memberStep {
	l.schedule()
	l.starts = map[int]bool{}
	if _, joins := l.up(); joins != 0 && l.quorum() {
		l.listed, l.data[joins] = append(l.listed, joins), true
	}
	l.observe()
	had := l.quorum()
	step := l.m.next()
	switch step.action {
	case actionRecord:
		l.m.status.Members = step.members
	case actionKick, actionLeave:
		server := step.server
		if step.action == actionLeave {
			server = l.m.reports[step.node].Address
		}
		at := slices.IndexFunc(l.listed, func(i int) bool { return raftAddress(i) == server })
		l.data[l.listed[at]] = false
		l.listed = slices.Delete(l.listed, at, at+1)
	case actionNone:
	}
	l.schedule()
	if had && !l.quorum() && step.action != actionNone && len(l.listed) > 1 { // the only member may have to restart
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
		l.m.now = metav1.Unix(1000, 0)
		var said []string
		for range 60 {
			up, _ := l.up()
			spare := 2*(len(up)-1) > len(l.listed) // one more may fail
			switch random.IntN(9) {
			case 0:
				l.m.want = []int{1, 3, 5}[random.IntN(3)]
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
				said = append(said, l.pass().message)
			}
		}
		l.silent = map[int]bool{}
		for range 60 {
			if s := l.pass(); s.message != "" {
				said = append(said, s.message)
			}
		}
		up, _ := l.up()
		if len(l.listed) != l.m.want || len(l.m.status.Members) != l.m.want || len(up) != l.m.want {
			t.Fatalf("%d members wanted; the cluster has %v, recorded %v, up %v, pods %v, nodes %v\n%s", l.m.want, l.listed,
				l.m.status.Members, up, l.pods, l.nodes, strings.Join(said, "\n"))
		}
	})
}

// A member that lost its data before its first report joined again: the database lists two servers at its address.
func TestAFormerMemberAtAnAddressIsKickedByItsID(t *testing.T) {
	for _, at := range []int{1, 2} { // 1 leads
		m := clusterOf(3, 3, 3)
		for node, report := range m.reports {
			report.Members = append([]adminapi.Member{{ServerID: "old1", Address: raftAddress(at)}}, report.Members...)
			m.reports[node] = report
		}
		if s := m.next(); s.action != actionKick || s.server != "old1" {
			t.Errorf("at the address of member %d: %+v, want a kick of old1", at, s)
		}
		m.status.Members[at-1].ServerID = "" // its report is missing: either of them may be the present one
		if s := m.next(); s.action == actionKick {
			t.Errorf("at the address of member %d: %+v, want no kick", at, s)
		}
	}
}
