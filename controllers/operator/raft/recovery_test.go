// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

func TestTheStepOfARecovery(t *testing.T) {
	lose := func(m *Membership, nodes ...string) {
		m.Missing, m.Status.Leader = map[string]string{}, ""
		for _, n := range nodes {
			delete(m.Reports, n)
			m.Missing[n] = "the node does not answer"
		}
	}
	ask := func(m *Membership, source v1alpha1.RecoverySource, node string) {
		m.Recovery = &Recovery{ID: "one", Source: source, Node: node}
	}
	give := func(m *Membership, node string, change func(*adminapi.Status)) {
		r := m.Reports[node]
		change(&r)
		m.Reports[node] = r
	}
	move := func(m *Membership, nodes ...string) {
		for _, n := range nodes {
			m.Reports[n] = adminapi.Status{Waiting: "w", NeedsRejoin: true, MovedClusterID: m.Status.ClusterID}
			m.Missing[n] = "the node has another address now"
		}
	}
	backups := []adminapi.Backup{{Name: "b2", Time: time.Unix(2, 0)}, {Name: "b1", Time: time.Unix(1, 0)}}
	kept := Archive{Address: "192.0.2.9", Status: adminapi.Status{Backups: []adminapi.Backup{{Name: "b3", Time: time.Unix(3, 0)}, {Name: "b0", Time: time.Unix(0, 0)}}}}
	for _, c := range []struct {
		name   string
		n      int
		change func(*Membership)
		phase  v1alpha1.RecoveryPhase // recorded
		node   string
		backup string
		about  string
		stuck  bool
	}{
		{"none is asked for", 3, func(m *Membership) { lose(m, "n2", "n3") }, "", "", "", "", false},
		{"from the member that is left", 3, func(m *Membership) {
			lose(m, "n2", "n3")
			ask(m, v1alpha1.RecoverMember, "")
		}, v1alpha1.RecoveryCreating, "n1", "", "n1 re-creates", false},
		{"from the one that has most", 5, func(m *Membership) {
			lose(m, "n1", "n3", "n4")
			give(m, "n5", func(r *adminapi.Status) { r.LastIndex = 7 })
			ask(m, v1alpha1.RecoverMember, "")
		}, v1alpha1.RecoveryCreating, "n5", "", "n5 re-creates", false},
		{"also if others come after it by name", 5, func(m *Membership) {
			lose(m, "n1", "n3", "n4")
			give(m, "n2", func(r *adminapi.Status) { r.LastIndex = 7 })
			ask(m, v1alpha1.RecoverMember, "")
		}, v1alpha1.RecoveryCreating, "n2", "", "n2 re-creates", false},
		{"half of the members elect no leader", 4, func(m *Membership) {
			lose(m, "n3", "n4")
			ask(m, v1alpha1.RecoverMember, "")
		}, v1alpha1.RecoveryCreating, "n1", "", "n1 re-creates", false},
		{"unless another one is named", 5, func(m *Membership) {
			lose(m, "n1", "n3", "n4")
			give(m, "n5", func(r *adminapi.Status) { r.LastIndex = 7 })
			ask(m, v1alpha1.RecoverMember, "n2")
		}, v1alpha1.RecoveryCreating, "n2", "", "n2 re-creates", false},
		{"no member has the data", 3, func(m *Membership) {
			lose(m, "n1", "n2", "n3")
			ask(m, v1alpha1.RecoverMember, "")
		}, "", "", "", "no member", true},
		{"from the only member, whose node has another address now", 1, func(m *Membership) {
			lose(m)
			move(m, "n1")
			ask(m, v1alpha1.RecoverMember, "")
		}, v1alpha1.RecoveryCreating, "n1", "", "n1 re-creates", false},
		{"not from a file of another cluster", 1, func(m *Membership) {
			lose(m)
			move(m, "n1")
			give(m, "n1", func(r *adminapi.Status) { r.MovedClusterID = "other" })
			ask(m, v1alpha1.RecoverMember, "")
		}, "", "", "", "no member", true},
		{"of several such nodes one has to be named", 3, func(m *Membership) {
			lose(m, "n2")
			move(m, "n1", "n3")
			ask(m, v1alpha1.RecoverMember, "")
		}, "", "", "", "n1, n3 have other addresses", true},
		{"and is taken then", 3, func(m *Membership) {
			lose(m, "n2")
			move(m, "n1", "n3")
			ask(m, v1alpha1.RecoverMember, "n3")
		}, v1alpha1.RecoveryCreating, "n3", "", "n3 re-creates", false},
		{"a member that runs comes first", 3, func(m *Membership) {
			lose(m, "n2")
			move(m, "n1")
			ask(m, v1alpha1.RecoverMember, "")
		}, v1alpha1.RecoveryCreating, "n3", "", "n3 re-creates", false},
		{"a leader is left alone", 3, func(m *Membership) { ask(m, v1alpha1.RecoverMember, "") }, v1alpha1.RecoveryRefused, "", "", "has a leader", false},
		{"one that has lost the others is about to go", 3, func(m *Membership) {
			leader := m.Status.Leader
			lose(m, "n2", "n3") // n3 may only be starting
			delete(m.Missing, "n3")
			m.Status.Leader = leader
			ask(m, v1alpha1.RecoverMember, "")
		}, "", "", "", "waits", false},
		{"unless it is replaced in any case", 3, func(m *Membership) {
			ask(m, v1alpha1.RecoverRebuild, "n3")
			m.Recovery.Always = true
		}, v1alpha1.RecoveryCreating, "n3", "", "n3 re-creates", false},
		{"a member that may still join is waited for", 3, func(m *Membership) {
			lose(m, "n2")
			delete(m.Reports, "n3")
			ask(m, v1alpha1.RecoverMember, "")
		}, "", "", "", "waits", false},
		{"a database that never was", 3, func(m *Membership) {
			m.Status.ClusterID, m.Status.Leader = "", ""
			ask(m, v1alpha1.RecoverRebuild, "")
		}, v1alpha1.RecoveryRefused, "", "", "no database yet", false},
		{"once only", 3, func(m *Membership) {
			lose(m, "n2", "n3")
			ask(m, v1alpha1.RecoverMember, "")
			m.Status.Recovery = &v1alpha1.RecoveryStatus{ID: "one", Phase: v1alpha1.RecoveryCompleted}
		}, "", "", "", "", false},
		{"from the newest backup", 3, func(m *Membership) {
			lose(m, "n1", "n2")
			give(m, "n3", func(r *adminapi.Status) { r.Backups = backups })
			ask(m, v1alpha1.RecoverBackup, "")
		}, v1alpha1.RecoveryCreating, "n3", "b2", "n3 re-creates", false},
		{"from a backup by name", 3, func(m *Membership) {
			lose(m, "n1", "n2")
			give(m, "n3", func(r *adminapi.Status) { *r = adminapi.Status{Waiting: "w", NeedsRejoin: true, Backups: backups} })
			ask(m, v1alpha1.RecoverBackup, "")
			m.Recovery.Backup = "b1"
		}, v1alpha1.RecoveryCreating, "n3", "b1", "n3 re-creates", false},
		{"from the newest one, which is on the claim", 3, func(m *Membership) {
			lose(m, "n1", "n2")
			give(m, "n3", func(r *adminapi.Status) { r.Backups = backups })
			m.Archive = kept
			ask(m, v1alpha1.RecoverBackup, "")
		}, v1alpha1.RecoveryCreating, "n3", "b3@192.0.2.9", "n3 re-creates", false},
		{"by name, which the claim has, on the node that is wanted", 3, func(m *Membership) {
			lose(m, "n1", "n2")
			m.Archive = kept
			ask(m, v1alpha1.RecoverBackup, "n1")
			m.Recovery.Backup = "b0"
		}, v1alpha1.RecoveryCreating, "n1", "b0@192.0.2.9", "n1 re-creates", false},
		{"by name, which a node has as well as the claim", 3, func(m *Membership) {
			lose(m, "n1", "n2")
			give(m, "n3", func(r *adminapi.Status) { r.Backups = backups })
			m.Archive = Archive{Address: "192.0.2.9", Status: adminapi.Status{Backups: backups}}
			ask(m, v1alpha1.RecoverBackup, "")
			m.Recovery.Backup = "b1"
		}, v1alpha1.RecoveryCreating, "n3", "b1", "n3 re-creates", false},
		{"from the claim, on a new node when all are lost", 3, func(m *Membership) {
			lose(m, "n1", "n2", "n3")
			m.Free = freeNode(4)
			m.Nodes[netip.MustParseAddr("192.0.2.4")] = "n4"
			m.Archive = kept
			ask(m, v1alpha1.RecoverBackup, "")
		}, v1alpha1.RecoveryCreating, "n4", "b3@192.0.2.9", "n4 re-creates", false},
		{"of which there is none", 3, func(m *Membership) {
			lose(m, "n1", "n2")
			ask(m, v1alpha1.RecoverBackup, "")
		}, "", "", "", "no backup", true},
		{"from nothing, on a new node", 3, func(m *Membership) {
			lose(m, "n1", "n2", "n3")
			m.Free = freeNode(4)
			m.Nodes[netip.MustParseAddr("192.0.2.4")] = "n4"
			ask(m, v1alpha1.RecoverRebuild, "")
		}, v1alpha1.RecoveryCreating, "n4", "", "n4 re-creates", false},
		{"another one while one is under way", 3, func(m *Membership) {
			lose(m, "n2", "n3")
			m.Status.ClusterID = ""
			m.Status.Recovery = &v1alpha1.RecoveryStatus{ID: "zero", Phase: v1alpha1.RecoveryCreating, Node: "n3"}
			ask(m, v1alpha1.RecoverRebuild, "n1")
		}, v1alpha1.RecoveryCreating, "n1", "", "n1 re-creates", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := clusterOf(c.n, c.n, c.n)
			m.Status.Since = new(metav1.Unix(1000, 0)) // equal to now
			c.change(&m)
			got := m.Next()
			if got.Stuck != c.stuck || !strings.Contains(got.Message, c.about) || (got.Action == ActionRecover) != (c.phase != "") {
				t.Fatalf("got %+v", got)
			}
			if c.phase == "" {
				return
			}
			db := got.Recovered
			backup := db.Recovery.Backup
			if a := db.Recovery.BackupAddress; a != "" {
				backup += "@" + a
			}
			if db.Recovery.Phase != c.phase || db.Recovery.Node != c.node || backup != c.backup || db.Recovery.ID != "one" {
				t.Errorf("recorded %+v", db.Recovery)
			}
			if c.phase == v1alpha1.RecoveryRefused {
				if db.ClusterID != m.Status.ClusterID || len(db.Members) != c.n {
					t.Errorf("refused, and recorded %+v", db)
				}
				return
			}
			if db.ClusterID != "" || db.BootstrapNode != c.node || !db.Since.After(m.Status.Since.Time) || len(db.Members) != c.n {
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

// TestTheArchiveIsFollowed moves the backups pod to another address while a node reads from it.
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
		a := Archive{Address: c.now}
		a.Follow(&v1alpha1.DatabaseStatus{}) // no recovery
		if a.Follow(c.status); c.status.Recovery.BackupAddress != c.want {
			t.Errorf("%s: %q; want %q", c.name, c.status.Recovery.BackupAddress, c.want)
		}
	}
}
