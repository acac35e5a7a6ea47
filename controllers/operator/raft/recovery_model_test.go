// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/seed"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/ovsdb/startup"
)

// disaster is a model of nodes, files, processes and clusters in which anything may fail. The operator may crash between
// any two steps.
type disaster struct {
	*testing.T
	random *rand.Rand
	m      Membership // its status is the record in the API
	clock  int64
	nodes  map[int]*machine
	next   int
	pods   []int
	raft   map[string][]voter
	made   map[int64][]string // clusters that ran, by the date of their record
	asked  int
	// kept are the backups on the claim. kept.Address is empty while the backups pod does not answer.
	kept     Archive
	restored int // clusters that were created from a backup
}

type voter struct {
	node   int
	server string
}

// machine is a node.
type machine struct {
	alive   bool
	backups []adminapi.Backup
	file    *dataFile
	running *dataFile // the file that its server uses
	says    adminapi.Status
}

type dataFile struct {
	cluster, server string
	since           int64
}

func newDisaster(t *testing.T, random *rand.Rand) *disaster {
	d := &disaster{T: t, random: random, nodes: map[int]*machine{}, next: 6, clock: 1000, raft: map[string][]voter{}, made: map[int64][]string{}}
	for i := 1; i <= 5; i++ {
		d.nodes[i] = &machine{alive: true}
	}
	d.m = Membership{Want: 3, Status: v1alpha1.DatabaseStatus{BootstrapNode: "n1", Members: []v1alpha1.DatabaseMember{recordOf(1, "")}}}
	return d
}

func numberOf(node string) (i int) {
	_, _ = fmt.Sscanf(node, "n%d", &i)
	return i
}

// schedule acts as the StatefulSet controller and the scheduler. A pod on a silent node stays there.
func (d *disaster) schedule() {
	n := len(d.m.Status.Members)
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
		recorded := slices.ContainsFunc(d.m.Status.Members, func(r v1alpha1.DatabaseMember) bool { return r.Node == nodeOf(on) })
		if on != 0 && d.nodes[on] != nil && (recorded || !d.nodes[on].alive) {
			continue
		}
		d.stop(on)
		d.pods[ordinal] = 0
		for _, r := range d.m.Status.Members {
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

// member runs the supervisor of a node on the current record. The supervisor's own code decides.
func (d *disaster) member(i int) {
	node := d.nodes[i]
	if node == nil || !node.alive || !slices.Contains(d.pods, i) {
		return
	}
	status := d.m.Status
	if node.running != nil && startup.Superseded(dateOf(node.running.since), status) {
		node.running = nil
	}
	if node.running != nil {
		d.join(i)
		if !d.left(i) {
			return
		}
		node.running = nil
	}
	plan, err := startup.Decide(d.identify(i), status, nodeOf(i), netip.MustParseAddr(recordOf(i, "").Address))
	if err != nil { // a person has to check the file
		node.says = adminapi.Status{Waiting: err.Error()}
		return
	}
	node.says = adminapi.Status{Waiting: plan.Reason, NeedsRejoin: plan.Rejoin}
	switch plan.Step {
	case startup.Wait:
	case startup.Start:
		d.start(i)
	case startup.Create:
		node.file = d.create(i, 0)
		d.start(i)
	case startup.Recover:
		d.recover(i, plan)
	case startup.Join, startup.Rejoin:
		node.file = &dataFile{cluster: plan.ClusterID, server: fmt.Sprintf("s%d-%d", i, d.clock), since: secondsOf(plan.Since)}
		d.start(i)
	}
}

// recover creates a new cluster from the source of the plan, or waits for the source. The member of a recovery from a
// member has a file.
func (d *disaster) recover(i int, plan startup.Plan) {
	node, before := d.nodes[i], int64(0)
	if node.file != nil {
		before = node.file.since
	}
	has := func(all []adminapi.Backup) bool {
		return slices.ContainsFunc(all, func(b adminapi.Backup) bool { return b.Name == plan.Backup })
	}
	switch plan.Source {
	case v1alpha1.RecoverMember:
		if node.file == nil {
			d.Fatalf("node %d makes a cluster from a file that it does not have", i)
		}
	case v1alpha1.RecoverBackup:
		if plan.Backup == "" {
			d.Fatalf("node %d makes a cluster from a backup that is not named", i)
		}
		switch {
		case has(node.backups):
		case plan.Archive != "" && plan.Archive == d.kept.Address && has(d.kept.Backups):
			node.backups = append(node.backups, adminapi.Backup{Name: plan.Backup})
		default:
			node.says.Waiting = "backup " + plan.Backup + " cannot be read"
			return
		}
	case v1alpha1.RecoverRebuild, v1alpha1.RecoverNone:
	}
	node.file = d.create(i, secondsOf(plan.Since))
	if d.random.IntN(4) == 0 { // it crashes before the date is written: no process has seen this cluster
		node.file.since = before
		return
	}
	if plan.Source == v1alpha1.RecoverBackup {
		d.restored++
	}
	d.start(i)
}

// identify returns the identity that the file of a node contains, or nil if there is no file.
func (d *disaster) identify(i int) *startup.File {
	f := d.nodes[i].file
	if f == nil {
		return nil
	}
	file := &startup.File{Path: "file", ClusterID: f.cluster, ServerID: f.server, Since: dateOf(f.since)}
	if slices.Contains(d.raft["left"], voter{i, f.server}) {
		file.Unusable = errors.New("it is of a server that has left its cluster")
	}
	return file
}

// dateOf returns the date of a record; the first cluster has the zero time.
func dateOf(seconds int64) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.Unix(seconds, 0)
}

func secondsOf(date time.Time) int64 {
	if date.IsZero() {
		return 0
	}
	return date.Unix()
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
	status := d.m.Status
	if status.ClusterID == "" && !slices.Contains(d.made[file.since], file.cluster) {
		d.made[file.since] = append(d.made[file.since], file.cluster)
	}
	d.join(i)
}

// join makes a running server a voter, if its cluster has a quorum.
func (d *disaster) join(i int) {
	file := d.nodes[i].running
	if !slices.Contains(d.raft[file.cluster], voter{i, file.server}) && d.nodes[i].file.server == file.server && d.quorum(file.cluster) && !d.left(i) {
		d.raft[file.cluster] = append(d.raft[file.cluster], voter{i, file.server})
	}
}

// left reports whether the server was kicked or has left. It cannot return under its ID.
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

// reports returns the members' reports to the operator.
func (d *disaster) reports() map[string]adminapi.Status {
	reports := map[string]adminapi.Status{}
	for _, i := range d.pods {
		node := d.nodes[i]
		if node == nil || !node.alive {
			continue
		}
		if node.running == nil {
			r := node.says
			r.Backups = node.backups
			reports[nodeOf(i)] = r
			continue
		}
		f := node.running
		up := d.up(f.cluster)
		r := adminapi.Status{
			ClusterID: f.cluster, ServerID: f.server, Address: raftAddress(i), Role: adminapi.RoleFollower, Term: 1,
			Since: dateOf(f.since), Backups: node.backups, Connected: d.quorum(f.cluster) && slices.Contains(up, i),
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

// pass is one pass of the operator. It may crash before it writes the record.
func (d *disaster) pass(crashes bool) Step {
	d.clock++
	m := d.m
	m.Status, m.Now = *d.m.Status.DeepCopy(), metav1.Unix(d.clock, 0)
	m.Archive = d.kept
	m.Archive.Follow(&m.Status)
	m.Reports, m.Nodes, m.Free, m.Last, m.Missing = d.reports(), map[netip.Addr]string{}, nil, "", map[string]string{}
	if len(d.pods) > 0 && d.pods[len(d.pods)-1] != 0 {
		m.Last = nodeOf(d.pods[len(d.pods)-1])
	}
	for i, node := range d.nodes {
		m.Nodes[netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i))] = nodeOf(i)
		taken := slices.ContainsFunc(m.Status.Members, func(r v1alpha1.DatabaseMember) bool { return r.Node == nodeOf(i) })
		if !taken && node.alive {
			m.Free = freeNode(i)
		}
	}
	if err := Record(&m.Status, m.Reports); err != nil {
		d.Fatal(err)
	}
	for _, r := range m.Status.Members {
		if node := d.nodes[numberOf(r.Node)]; node == nil || !node.alive || m.Reports[r.Node].NeedsRejoin {
			m.Missing[r.Node] = "lost"
		}
	}
	step := m.Next()
	switch step.Action {
	case ActionRecord:
		m.Status.Members = step.Members
	case ActionRecover:
		m.Status = step.Recovered
	case ActionKick, ActionLeave:
		address := step.Server
		if step.Action == ActionLeave {
			address = m.Reports[step.Node].Address
		}
		cluster := m.Status.ClusterID
		at := slices.IndexFunc(d.raft[cluster], func(v voter) bool { return raftAddress(v.node) == address || v.server == address })
		if at >= 0 {
			d.raft["left"] = append(d.raft["left"], d.raft[cluster][at])
			d.raft[cluster] = slices.Delete(slices.Clone(d.raft[cluster]), at, at+1)
		}
	case ActionNone:
	}
	if r := m.Status.Recovery; r != nil && r.Phase == v1alpha1.RecoveryFilling && m.Status.Leader != "" {
		r.Phase = v1alpha1.RecoveryCompleted
	}
	if crashes && d.random.IntN(3) == 0 {
		return step
	}
	d.m.Status = m.Status
	return step
}

// something applies one random event.
func (d *disaster) something() {
	i := 1 + d.random.IntN(max(5, len(d.nodes)))
	node := d.nodes[i]
	switch d.random.IntN(18) {
	case 16:
		if node != nil && node.running != nil && d.quorum(node.running.cluster) {
			node.backups = append(node.backups, d.backup())
		}
	case 17:
		d.changeArchive()
	case 0:
		d.m.Want = []int{1, 3, 5}[d.random.IntN(3)]
	case 1: // a node is replaced by another
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
			node.file, node.running, node.backups = nil, nil, nil
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

func (d *disaster) backup() adminapi.Backup {
	d.clock++
	return adminapi.Backup{Name: fmt.Sprint("b", d.clock), Time: time.Unix(d.clock, 0)}
}

// changeArchive adds a backup on the claim, or stops the backups pod, or changes its address. The claim retains the
// backups.
func (d *disaster) changeArchive() {
	switch d.random.IntN(3) {
	case 0:
		d.kept.Address = ""
	case 1:
		d.kept.Address = fmt.Sprintf("198.51.100.%d", 1+d.random.IntN(200))
	case 2:
		if d.kept.Address != "" && d.m.Status.Leader != "" {
			d.kept.Backups = slices.Insert(d.kept.Backups, 0, d.backup())
		}
	}
}

// ask requests a recovery from any source. A quarter of the requests name the node, and half of those from a backup name
// the backup, which may not exist any longer.
func (d *disaster) ask(always bool) {
	d.asked++
	source := []v1alpha1.RecoverySource{v1alpha1.RecoverMember, v1alpha1.RecoverRebuild, v1alpha1.RecoverBackup}[d.random.IntN(3)]
	d.m.Recovery = &Recovery{ID: fmt.Sprint(d.asked), Source: source, Always: always}
	if d.random.IntN(4) == 0 {
		d.m.Recovery.Node = nodeOf(1 + d.random.IntN(6))
	}
	var known []adminapi.Backup
	for _, node := range d.nodes {
		known = append(known, node.backups...)
	}
	known = append(known, d.kept.Backups...)
	slices.SortFunc(known, func(a, b adminapi.Backup) int { return strings.Compare(a.Name, b.Name) }) // d.nodes is a map
	if source == v1alpha1.RecoverBackup && len(known) > 0 && d.random.IntN(2) == 0 {
		d.m.Recovery.Backup = known[d.random.IntN(len(known))].Name
	}
}

// check verifies that each record leads to at most one cluster, and that no two clusters have a quorum once all members
// have seen the record.
func (d *disaster) check() {
	for since, clusters := range d.made { // a cluster whose only file was lost at once may have had a predecessor
		up := slices.DeleteFunc(slices.Clone(clusters), func(c string) bool { return len(d.up(c)) == 0 })
		if len(up) > 1 {
			d.Fatalf("of the record of %d came the clusters %v", since, up)
		}
	}
	if len(d.made) > d.asked+1 {
		d.Fatalf("%d recoveries were asked for, and there were %d clusters", d.asked, len(d.made))
	}
	since := int64(0)
	if d.m.Status.Since != nil {
		since = d.m.Status.Since.Unix()
	}
	var serving []string
	for cluster := range d.raft {
		if cluster == "left" || !d.quorum(cluster) {
			continue
		}
		for _, i := range d.up(cluster) { // members that have not seen the record yet are about to stop
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

// TestRecoveriesConverge lets nodes, disks, members and the operator fail in any order, with or without quorum, while
// recoveries are requested. There are never two clusters, and each recovery runs at most once. At the end the database
// matches the spec, if necessary after a last recovery.
func TestRecoveriesConverge(t *testing.T) {
	const histories = 400
	lost, recovered, restored := 0, 0, 0
	seed.Histories(t, []uint64{4120505280}, histories, func(t *testing.T, _ uint64, random *rand.Rand) {
		d := newDisaster(t, random)
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
			s := d.pass(false)
			if s.Message != "" {
				said = append(said, s.Message)
			}
			d.check()
			if round == 30 && d.m.Status.Leader != "" && s.Stuck { // a stuck recovery waits for a person: withdraw it
				d.m.Recovery = nil
			}
			if round == 30 && d.m.Status.Leader == "" {
				lost++
				d.asked++
				d.m.Recovery = &Recovery{ID: fmt.Sprint(d.asked), Source: v1alpha1.RecoverRebuild, Always: true}
			}
		}
		if len(d.made) > 1 {
			recovered++
		}
		restored += d.restored
		status := d.m.Status
		if up := d.up(status.ClusterID); len(up) != d.m.Want || len(status.Members) != d.m.Want || len(d.raft[status.ClusterID]) != d.m.Want {
			t.Fatalf("%d members wanted; cluster %s has %v, up %v, recorded %+v, pods %v\n%s", d.m.Want, status.ClusterID,
				d.raft[status.ClusterID], up, status, d.pods, strings.Join(said[max(0, len(said)-25):], "\n"))
		}
	})
	if os.Getenv(seed.Env) != "" {
		return // one history does not contain every event
	}
	if lost == 0 || recovered == 0 || restored == 0 {
		t.Errorf("%d histories ended without a leader, %d had recoveries, %d clusters came from a backup: the test tries nothing", lost, recovered, restored)
	}
	t.Logf("%d of %d histories needed a last recovery, %d had one; %d clusters came from a backup", lost, histories, recovered, restored)
}
