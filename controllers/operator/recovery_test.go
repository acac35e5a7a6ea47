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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

func TestTheStepOfARecovery(t *testing.T) {
	lose := func(m *membership, nodes ...string) {
		m.missing, m.status.Leader = map[string]string{}, ""
		for _, n := range nodes {
			delete(m.reports, n)
			m.missing[n] = "the node does not answer"
		}
	}
	ask := func(m *membership, source v1alpha1.RecoverySource, node string) {
		m.recovery = &recovery{id: "one", source: source, node: node}
	}
	give := func(m *membership, node string, change func(*adminapi.Status)) {
		r := m.reports[node]
		change(&r)
		m.reports[node] = r
	}
	backups := []adminapi.Backup{{Name: "b2", Time: time.Unix(2, 0)}, {Name: "b1", Time: time.Unix(1, 0)}}
	kept := archive{address: "192.0.2.9", Status: adminapi.Status{Backups: []adminapi.Backup{{Name: "b3", Time: time.Unix(3, 0)}, {Name: "b0", Time: time.Unix(0, 0)}}}}
	for _, c := range []struct {
		name   string
		n      int
		change func(*membership)
		phase  v1alpha1.RecoveryPhase // recorded
		node   string
		backup string
		about  string
		stuck  bool
	}{
		{"none is asked for", 3, func(m *membership) { lose(m, "n2", "n3") }, "", "", "", "", false},
		{"from the member that is left", 3, func(m *membership) {
			lose(m, "n2", "n3")
			ask(m, v1alpha1.RecoverMember, "")
		}, v1alpha1.RecoveryCreating, "n1", "", "n1 makes", false},
		{"from the one that has most", 5, func(m *membership) {
			lose(m, "n1", "n3", "n4")
			give(m, "n5", func(r *adminapi.Status) { r.LastIndex = 7 })
			ask(m, v1alpha1.RecoverMember, "")
		}, v1alpha1.RecoveryCreating, "n5", "", "n5 makes", false},
		{"unless another one is named", 5, func(m *membership) {
			lose(m, "n1", "n3", "n4")
			give(m, "n5", func(r *adminapi.Status) { r.LastIndex = 7 })
			ask(m, v1alpha1.RecoverMember, "n2")
		}, v1alpha1.RecoveryCreating, "n2", "", "n2 makes", false},
		{"nobody has the data", 3, func(m *membership) {
			lose(m, "n1", "n2", "n3")
			ask(m, v1alpha1.RecoverMember, "")
		}, "", "", "", "no member", true},
		{"a leader is left alone", 3, func(m *membership) { ask(m, v1alpha1.RecoverMember, "") }, v1alpha1.RecoveryRefused, "", "", "has a leader", false},
		{"one that has lost the others is about to go", 3, func(m *membership) {
			leader := m.status.Leader
			lose(m, "n2", "n3") // one of them may just be starting
			delete(m.missing, "n3")
			m.status.Leader = leader
			ask(m, v1alpha1.RecoverMember, "")
		}, "", "", "", "waits", false},
		{"unless it is to be replaced in any case", 3, func(m *membership) {
			ask(m, v1alpha1.RecoverRebuild, "n3")
			m.recovery.always = true
		}, v1alpha1.RecoveryCreating, "n3", "", "n3 makes", false},
		{"who may yet come is waited for", 3, func(m *membership) {
			lose(m, "n2")
			delete(m.reports, "n3")
			ask(m, v1alpha1.RecoverMember, "")
		}, "", "", "", "waits", false},
		{"a database that never was", 3, func(m *membership) {
			m.status.ClusterID, m.status.Leader = "", ""
			ask(m, v1alpha1.RecoverRebuild, "")
		}, v1alpha1.RecoveryRefused, "", "", "no database yet", false},
		{"once only", 3, func(m *membership) {
			lose(m, "n2", "n3")
			ask(m, v1alpha1.RecoverMember, "")
			m.status.Recovery = &v1alpha1.RecoveryStatus{ID: "one", Phase: v1alpha1.RecoveryCompleted}
		}, "", "", "", "", false},
		{"from the newest backup", 3, func(m *membership) {
			lose(m, "n1", "n2")
			give(m, "n3", func(r *adminapi.Status) { r.Backups = backups })
			ask(m, v1alpha1.RecoverBackup, "")
		}, v1alpha1.RecoveryCreating, "n3", "b2", "n3 makes", false},
		{"from a backup by name", 3, func(m *membership) {
			lose(m, "n1", "n2")
			give(m, "n3", func(r *adminapi.Status) { *r = adminapi.Status{Waiting: "w", NeedsRejoin: true, Backups: backups} })
			ask(m, v1alpha1.RecoverBackup, "")
			m.recovery.backup = "b1"
		}, v1alpha1.RecoveryCreating, "n3", "b1", "n3 makes", false},
		{"from the newest one, which is on the claim", 3, func(m *membership) {
			lose(m, "n1", "n2")
			give(m, "n3", func(r *adminapi.Status) { r.Backups = backups })
			m.archive = kept
			ask(m, v1alpha1.RecoverBackup, "")
		}, v1alpha1.RecoveryCreating, "n3", "b3@192.0.2.9", "n3 makes", false},
		{"by name, which the claim has, on the node that is wanted", 3, func(m *membership) {
			lose(m, "n1", "n2")
			m.archive = kept
			ask(m, v1alpha1.RecoverBackup, "n1")
			m.recovery.backup = "b0"
		}, v1alpha1.RecoveryCreating, "n1", "b0@192.0.2.9", "n1 makes", false},
		{"by name, which a node has as well as the claim", 3, func(m *membership) {
			lose(m, "n1", "n2")
			give(m, "n3", func(r *adminapi.Status) { r.Backups = backups })
			m.archive = archive{address: "192.0.2.9", Status: adminapi.Status{Backups: backups}}
			ask(m, v1alpha1.RecoverBackup, "")
			m.recovery.backup = "b1"
		}, v1alpha1.RecoveryCreating, "n3", "b1", "n3 makes", false},
		{"from the claim, on a new node when all are lost", 3, func(m *membership) {
			lose(m, "n1", "n2", "n3")
			m.free = freeNode(4)
			m.nodes[netip.MustParseAddr("192.0.2.4")] = "n4"
			m.archive = kept
			ask(m, v1alpha1.RecoverBackup, "")
		}, v1alpha1.RecoveryCreating, "n4", "b3@192.0.2.9", "n4 makes", false},
		{"of which there is none", 3, func(m *membership) {
			lose(m, "n1", "n2")
			ask(m, v1alpha1.RecoverBackup, "")
		}, "", "", "", "no backup", true},
		{"from nothing, on a new node", 3, func(m *membership) {
			lose(m, "n1", "n2", "n3")
			m.free = freeNode(4)
			m.nodes[netip.MustParseAddr("192.0.2.4")] = "n4"
			ask(m, v1alpha1.RecoverRebuild, "")
		}, v1alpha1.RecoveryCreating, "n4", "", "n4 makes", false},
		{"another one while one is under way", 3, func(m *membership) {
			lose(m, "n2", "n3")
			m.status.ClusterID = ""
			m.status.Recovery = &v1alpha1.RecoveryStatus{ID: "zero", Phase: v1alpha1.RecoveryCreating, Node: "n3"}
			ask(m, v1alpha1.RecoverRebuild, "n1")
		}, v1alpha1.RecoveryCreating, "n1", "", "n1 makes", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := clusterOf(c.n, c.n, c.n)
			m.status.Since = new(metav1.Unix(1000, 0)) // as late as now
			c.change(&m)
			got := m.next()
			if got.stuck != c.stuck || !strings.Contains(got.message, c.about) || (got.action == actionRecover) != (c.phase != "") {
				t.Fatalf("got %+v", got)
			}
			if c.phase == "" {
				return
			}
			db := got.recovered
			backup := db.Recovery.Backup
			if a := db.Recovery.BackupAddress; a != "" {
				backup += "@" + a
			}
			if db.Recovery.Phase != c.phase || db.Recovery.Node != c.node || backup != c.backup || db.Recovery.ID != "one" {
				t.Errorf("recorded %+v", db.Recovery)
			}
			if c.phase == v1alpha1.RecoveryRefused {
				if db.ClusterID != m.status.ClusterID || len(db.Members) != c.n {
					t.Errorf("refused, and recorded %+v", db)
				}
				return
			}
			if db.ClusterID != "" || db.BootstrapNode != c.node || !db.Since.After(m.status.Since.Time) || len(db.Members) != c.n {
				t.Errorf("recorded %+v", db)
			}
			for _, d := range db.Members {
				if d.ServerID != "" || !d.Since.Equal(db.Since) {
					t.Errorf("recorded %+v", d)
				}
			}
		})
	}
}

// TestTheArchiveIsFollowed: the pod that has the claim may be made anew elsewhere while a node reads from it.
func TestTheArchiveIsFollowed(t *testing.T) {
	at := func(phase v1alpha1.RecoveryPhase, address string) *v1alpha1.DatabaseStatus {
		return &v1alpha1.DatabaseStatus{Recovery: &v1alpha1.RecoveryStatus{Phase: phase, BackupAddress: address}}
	}
	for _, c := range []struct {
		name, now string
		status    *v1alpha1.DatabaseStatus
		want      string
	}{
		{"it moved", "192.0.2.2", at(v1alpha1.RecoveryCreating, "192.0.2.1"), "192.0.2.2"},
		{"it is away", "", at(v1alpha1.RecoveryCreating, "192.0.2.1"), "192.0.2.1"},
		{"the node has the backup itself", "192.0.2.2", at(v1alpha1.RecoveryCreating, ""), ""},
		{"the database was made", "192.0.2.2", at(v1alpha1.RecoveryFilling, "192.0.2.1"), "192.0.2.1"},
	} {
		p := &pass{archive: archive{address: c.now}}
		p.refindArchive(&v1alpha1.DatabaseStatus{}) // no recovery
		if p.refindArchive(c.status); c.status.Recovery.BackupAddress != c.want {
			t.Errorf("%s: %q; want %q", c.name, c.status.Recovery.BackupAddress, c.want)
		}
	}
}

// disaster is a model of nodes, files, processes and clusters in which anything may fail, the operator between any two of its steps.
type disaster struct {
	*testing.T
	random *rand.Rand
	m      membership // the record is what the API has
	clock  int64
	nodes  map[int]*machine
	next   int
	pods   []int
	raft   map[string][]voter
	made   map[int64][]string // clusters that ran, by the date of their record
	asked  int
}

type voter struct {
	node   int
	server string
}

// machine is a node.
type machine struct {
	alive   bool
	file    *dataFile
	running *dataFile // what its server runs
	says    adminapi.Status
}

type dataFile struct {
	cluster, server string
	since           int64
}

func newDisaster(t *testing.T, seed uint64) *disaster {
	d := &disaster{T: t, random: rand.New(rand.NewPCG(seed, 2)), nodes: map[int]*machine{}, next: 6, clock: 1000, raft: map[string][]voter{}, made: map[int64][]string{}}
	for i := 1; i <= 5; i++ {
		d.nodes[i] = &machine{alive: true}
	}
	d.m = membership{want: 3, status: v1alpha1.DatabaseStatus{BootstrapNode: "n1", Members: []v1alpha1.DatabaseMember{recordOf(1, "")}}}
	return d
}

func numberOf(node string) (i int) {
	_, _ = fmt.Sscanf(node, "n%d", &i)
	return i
}

// schedule does what the StatefulSet's controller and the scheduler do. A pod on a node that is silent stays there.
func (d *disaster) schedule() {
	n := len(d.m.status.Members)
	if len(d.pods) > n {
		for _, i := range d.pods[n:] {
			d.stop(i)
		}
		d.pods = d.pods[:n]
	}
	for len(d.pods) < n {
		d.pods = append(d.pods, 0)
	}
	for ordinal, on := range d.pods {
		recorded := slices.ContainsFunc(d.m.status.Members, func(r v1alpha1.DatabaseMember) bool { return r.Node == nodeOf(on) })
		if on != 0 && d.nodes[on] != nil && (recorded || !d.nodes[on].alive) {
			continue
		}
		d.stop(on)
		d.pods[ordinal] = 0
		for _, r := range d.m.status.Members {
			if i := numberOf(r.Node); d.nodes[i] != nil && d.nodes[i].alive && !slices.Contains(d.pods, i) {
				d.pods[ordinal] = i
				break
			}
		}
	}
}

func (d *disaster) stop(i int) {
	if m := d.nodes[i]; m != nil {
		m.running = nil
	}
}

// member lets a node's supervisor look at the record, as internal/supervisor/ovsdb decides.
func (d *disaster) member(i int) {
	node := d.nodes[i]
	if node == nil || !node.alive || !slices.Contains(d.pods, i) {
		return
	}
	status := d.m.status
	since := int64(0)
	if status.Since != nil {
		since = status.Since.Unix()
	}
	if node.running != nil && node.running.since < since {
		node.running = nil // superseded
	}
	if node.running != nil {
		d.join(i)
		if !d.left(i) {
			return
		}
		node.running = nil
	}
	at := slices.IndexFunc(status.Members, func(r v1alpha1.DatabaseMember) bool { return r.Node == nodeOf(i) })
	node.says = adminapi.Status{Waiting: "w"}
	if status.ClusterID == "" {
		if status.BootstrapNode != nodeOf(i) {
			return
		}
		if node.file == nil || node.file.since != since {
			if status.Recovery != nil && status.Recovery.Source == v1alpha1.RecoverMember && node.file == nil {
				return
			}
			node.file = d.create(i, since)
			if d.random.IntN(4) == 0 { // it crashes before the date is written: nobody has seen this cluster
				node.file.since = 0
				return
			}
		}
		d.start(i)
		return
	}
	if at < 0 {
		return
	}
	record := status.Members[at]
	begun := int64(0)
	if record.Since != nil {
		begun = record.Since.Unix()
	}
	fits := node.file != nil && (node.file.cluster == status.ClusterID) && node.file.since >= begun &&
		(record.ServerID == "" || record.ServerID == node.file.server) && !slices.Contains(d.raft["left"], voter{i, node.file.server})
	switch {
	case fits:
		d.start(i)
	case record.ServerID != "":
		node.says.NeedsRejoin = true
	default:
		node.file = &dataFile{cluster: status.ClusterID, server: fmt.Sprintf("s%d-%d", i, d.clock), since: begun}
		d.start(i)
	}
}

func (d *disaster) create(i int, since int64) *dataFile {
	d.next++
	cluster := fmt.Sprintf("c%d", d.next)
	server := "s-" + cluster
	d.raft[cluster] = []voter{{i, server}}
	return &dataFile{cluster: cluster, server: server, since: since}
}

func (d *disaster) start(i int) {
	file := *d.nodes[i].file
	d.nodes[i].running = &file
	status := d.m.status
	if status.ClusterID == "" && !slices.Contains(d.made[file.since], file.cluster) {
		d.made[file.since] = append(d.made[file.since], file.cluster)
	}
	d.join(i)
}

// join makes a running server a voter, if its cluster can agree on that.
func (d *disaster) join(i int) {
	file := d.nodes[i].running
	if !slices.Contains(d.raft[file.cluster], voter{i, file.server}) && d.nodes[i].file.server == file.server && d.quorum(file.cluster) && !d.left(i) {
		d.raft[file.cluster] = append(d.raft[file.cluster], voter{i, file.server})
	}
}

// left: a server that was kicked or has left does not come back under its ID.
func (d *disaster) left(i int) bool {
	return slices.Contains(d.raft["left"], voter{i, d.nodes[i].running.server})
}

func (d *disaster) up(cluster string) (up []int) {
	for _, v := range d.raft[cluster] {
		if m := d.nodes[v.node]; m != nil && m.alive && m.running != nil && m.running.server == v.server {
			up = append(up, v.node)
		}
	}
	return up
}

func (d *disaster) quorum(cluster string) bool { return 2*len(d.up(cluster)) > len(d.raft[cluster]) }

// reports are what members say to the operator.
func (d *disaster) reports() map[string]adminapi.Status {
	reports := map[string]adminapi.Status{}
	for _, i := range d.pods {
		node := d.nodes[i]
		if node == nil || !node.alive {
			continue
		}
		if node.running == nil {
			reports[nodeOf(i)] = node.says
			continue
		}
		f := node.running
		up := d.up(f.cluster)
		r := adminapi.Status{
			ClusterID: f.cluster, ServerID: f.server, Address: raftAddress(i), Role: adminapi.RoleFollower, Term: 1,
			Since: time.Unix(f.since, 0), Connected: d.quorum(f.cluster) && slices.Contains(up, i),
		}
		if r.Connected && up[0] == i {
			r.Role = adminapi.RoleLeader
		}
		for _, v := range d.raft[f.cluster] {
			r.Members = append(r.Members, adminapi.Member{ServerID: v.server, Address: raftAddress(v.node)})
		}
		reports[nodeOf(i)] = r
	}
	return reports
}

// pass is one of the operator's. It may end before the record is written.
func (d *disaster) pass(crashes bool) memberStep {
	d.clock++
	m := d.m
	m.status, m.now = *d.m.status.DeepCopy(), metav1.Unix(d.clock, 0)
	m.reports, m.nodes, m.free, m.last, m.missing = d.reports(), map[netip.Addr]string{}, nil, "", map[string]string{}
	if len(d.pods) > 0 && d.pods[len(d.pods)-1] != 0 {
		m.last = nodeOf(d.pods[len(d.pods)-1])
	}
	for i, node := range d.nodes {
		m.nodes[netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i))] = nodeOf(i)
		taken := slices.ContainsFunc(m.status.Members, func(r v1alpha1.DatabaseMember) bool { return r.Node == nodeOf(i) })
		if !taken && node.alive {
			m.free = freeNode(i)
		}
	}
	if err := record(&m.status, m.reports); err != nil {
		d.Fatal(err)
	}
	for _, r := range m.status.Members {
		if node := d.nodes[numberOf(r.Node)]; node == nil || !node.alive || m.reports[r.Node].NeedsRejoin {
			m.missing[r.Node] = "lost"
		}
	}
	step := m.next()
	switch step.action {
	case actionRecord:
		m.status.Members = step.members
	case actionRecover:
		m.status = step.recovered
	case actionKick, actionLeave:
		address := step.server
		if step.action == actionLeave {
			address = m.reports[step.node].Address
		}
		cluster := m.status.ClusterID
		at := slices.IndexFunc(d.raft[cluster], func(v voter) bool { return raftAddress(v.node) == address })
		if at >= 0 {
			d.raft["left"] = append(d.raft["left"], d.raft[cluster][at])
			d.raft[cluster] = slices.Delete(slices.Clone(d.raft[cluster]), at, at+1)
		}
	case actionNone:
	}
	if r := m.status.Recovery; r != nil && r.Phase == v1alpha1.RecoveryFilling && m.status.Leader != "" {
		r.Phase = v1alpha1.RecoveryCompleted
	}
	if crashes && d.random.IntN(3) == 0 {
		return step
	}
	d.m.status = m.status
	return step
}

// something happens.
func (d *disaster) something() {
	i := 1 + d.random.IntN(max(5, len(d.nodes)))
	node := d.nodes[i]
	switch d.random.IntN(16) {
	case 0:
		d.m.want = []int{1, 3, 5}[d.random.IntN(3)]
	case 1: // a node is removed, another one comes
		if node != nil && d.random.IntN(2) == 0 {
			delete(d.nodes, i)
			d.next++
			if d.next < 250 {
				d.nodes[d.next] = &machine{alive: true}
			}
		}
	case 2, 3:
		if node != nil {
			node.alive = !node.alive
			node.running = nil
		}
	case 4:
		if node != nil && d.random.IntN(3) == 0 {
			node.file, node.running = nil, nil
		}
	case 5:
		if d.random.IntN(2) == 0 {
			d.ask(d.random.IntN(4) == 0)
		}
	case 6, 7, 8, 9:
		d.pass(true)
	default:
		d.schedule()
		d.member(i)
	}
	d.check()
}

func (d *disaster) ask(always bool) {
	d.asked++
	source := []v1alpha1.RecoverySource{v1alpha1.RecoverMember, v1alpha1.RecoverRebuild}[d.random.IntN(2)]
	d.m.recovery = &recovery{id: fmt.Sprint(d.asked), source: source, always: always}
}

// check: of each record at most one cluster came, and at no time do two have a quorum once everybody has seen the record.
func (d *disaster) check() {
	for since, clusters := range d.made { // one whose only file was lost at once may have had another one before
		up := slices.DeleteFunc(slices.Clone(clusters), func(c string) bool { return len(d.up(c)) == 0 })
		if len(up) > 1 {
			d.Fatalf("of the record of %d came the clusters %v", since, up)
		}
	}
	if len(d.made) > d.asked+1 {
		d.Fatalf("%d recoveries were asked for, and there were %d clusters", d.asked, len(d.made))
	}
	since := int64(0)
	if d.m.status.Since != nil {
		since = d.m.status.Since.Unix()
	}
	var serving []string
	for cluster := range d.raft {
		if cluster == "left" || !d.quorum(cluster) {
			continue
		}
		for _, i := range d.up(cluster) { // those that have not looked yet are about to stop
			if d.nodes[i].running.since >= since {
				serving = append(serving, cluster)
				break
			}
		}
	}
	if len(serving) > 1 {
		d.Fatalf("two clusters serve: %v", serving)
	}
}

// TestRecoveriesConverge lets nodes, disks, members and the operator fail in any order, quorum or not, while recoveries are asked for: there are never
// two clusters, each recovery is carried out at most once, and in the end a last one, if it takes one, makes everything as wanted.
func TestRecoveriesConverge(t *testing.T) {
	const histories = 400
	lost, recovered := 0, 0
	for seed := range uint64(histories) {
		d := newDisaster(t, seed)
		for range 40 {
			d.schedule()
			d.member(1)
			d.pass(true)
		}
		for range 150 {
			d.something()
		}
		for _, node := range d.nodes {
			node.alive = true
		}
		var said []string
		for round := range 200 {
			d.schedule()
			for i := range d.next + 1 {
				d.member(i)
			}
			if s := d.pass(false); s.message != "" {
				said = append(said, s.message)
			}
			d.check()
			if round == 30 && d.m.status.Leader == "" {
				lost++
				d.asked++
				d.m.recovery = &recovery{id: fmt.Sprint(d.asked), source: v1alpha1.RecoverRebuild, always: true}
			}
		}
		if len(d.made) > 1 {
			recovered++
		}
		status := d.m.status
		if up := d.up(status.ClusterID); len(up) != d.m.want || len(status.Members) != d.m.want || len(d.raft[status.ClusterID]) != d.m.want {
			t.Fatalf("seed %d: %d members wanted; cluster %s has %v, up %v, recorded %+v, pods %v\n%s", seed, d.m.want, status.ClusterID,
				d.raft[status.ClusterID], up, status, d.pods, strings.Join(said[max(0, len(said)-25):], "\n"))
		}
	}
	if lost == 0 || recovered == 0 {
		t.Errorf("%d histories ended without a leader, %d had recoveries: the test tries nothing", lost, recovered)
	}
	t.Logf("%d of %d histories needed a last recovery, %d had one", lost, histories, recovered)
}
