// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// transact runs operations in a member's database.
func (m *trialMember) transact(t *testing.T, operations ...any) (results []struct {
	Rows  []struct{ Name string }
	Error string
},
) {
	t.Helper()
	conn, err := jsonrpc.Dial(t.Context(), m.options.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Call("transact", append([]any{m.options.Database.Name}, operations...), &results); err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Error != "" {
			t.Fatalf("transact: %+v", results)
		}
	}
	return results
}

// insert writes a row that identifies the content of a database.
func (m *trialMember) insert(t *testing.T, name string) {
	t.Helper()
	m.transact(t, map[string]any{"op": "insert", "table": "Address_Set", "row": map[string]any{"name": name, "addresses": "192.0.2.1"}})
}

func (m *trialMember) content(t *testing.T) string {
	t.Helper()
	var names []string
	for _, row := range m.transact(t, map[string]any{"op": "select", "table": "Address_Set", "where": []any{}, "columns": []string{"name"}})[0].Rows {
		names = append(names, row.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// tell sends a new record to a member.
func (m *trialMember) tell(status v1alpha1.DatabaseStatus, backup v1alpha1.Backup) {
	cluster := &v1alpha1.OVNCluster{Status: v1alpha1.OVNClusterStatus{Southbound: *status.DeepCopy()}}
	cluster.Spec.Central.Backup = backup
	select {
	case <-m.clusters: // replaces an unreceived value, like ovncluster.Watch
	default:
	}
	m.clusters <- cluster
}

// recovery is the record of a recovery on a node of the trial.
func (tr *trial) recovery(on *trialMember, source v1alpha1.RecoverySource, backup string, since int64) v1alpha1.DatabaseStatus {
	began := new(metav1.Unix(since, 0))
	status := v1alpha1.DatabaseStatus{BootstrapNode: on.options.Node, Since: began, Recovery: &v1alpha1.RecoveryStatus{
		ID: "r", Phase: v1alpha1.RecoveryCreating, Source: source, Node: on.options.Node, Backup: backup,
	}}
	for node, m := range tr.members {
		status.Members = append(status.Members, v1alpha1.DatabaseMember{Node: node, Address: m.options.Address.String(), Since: began})
	}
	return status
}

// recover plays the operator: all running members get the recovery's record, and then the record of the new cluster.
func (tr *trial) recover(on *trialMember, status v1alpha1.DatabaseStatus, running ...*trialMember) (v1alpha1.DatabaseStatus, adminapi.Status) {
	tr.t.Helper()
	status = *status.DeepCopy() // the caller keeps its record unchanged
	for _, m := range running {
		m.tell(status, v1alpha1.Backup{})
	}
	var said adminapi.Status
	supervisortest.Eventually(tr.t, "the new cluster is there", func() (err error) {
		said, err = tr.admin(on, tr.callers).Status(tr.t.Context())
		if err == nil && (!said.Connected || !said.Since.Equal(status.Since.Time)) {
			err = fmt.Errorf("it says %+v", said)
		}
		return err
	})
	status.ClusterID, status.Recovery.Phase = said.ClusterID, v1alpha1.RecoveryCompleted
	at := slices.IndexFunc(status.Members, func(m v1alpha1.DatabaseMember) bool { return m.Node == on.options.Node })
	status.Members[at].ServerID = said.ServerID
	for _, m := range running {
		m.tell(status, v1alpha1.Backup{})
	}
	return status, said
}

func TestRecovery(t *testing.T) {
	tr := newTrial(t)
	first, second, third := tr.add("cp-1", "127.0.3.1"), tr.add("cp-2", "127.0.3.2"), tr.add("cp-3", "127.0.3.3")
	all := []*trialMember{first, second, third}
	for _, m := range all {
		m.options.Database.Backed = true
	}
	tr.start(first, v1alpha1.DatabaseStatus{BootstrapNode: "cp-1"})
	one := tr.untilConnected(first, 1)
	status := v1alpha1.DatabaseStatus{BootstrapNode: "cp-1", ClusterID: one.ClusterID, Members: []v1alpha1.DatabaseMember{
		{Node: "cp-1", Address: "127.0.3.1", ServerID: one.ServerID}, {Node: "cp-2", Address: "127.0.3.2"}, {Node: "cp-3", Address: "127.0.3.3"},
	}}
	tr.start(second, status)
	tr.untilConnected(second, 2)
	tr.start(third, status)
	tr.untilConnected(third, 3)
	first.insert(t, "a")

	var backup adminapi.Backup
	t.Run("a follower backs up", func(t *testing.T) {
		third.tell(status, v1alpha1.Backup{Interval: metav1.Duration{Duration: time.Hour}, Keep: 2})
		supervisortest.Eventually(t, "a backup is reported", func() error {
			said, err := tr.admin(third, tr.callers).Status(t.Context())
			if err == nil && len(said.Backups) != 1 {
				return fmt.Errorf("it says %+v", said)
			}
			if err == nil {
				backup = said.Backups[0]
			}
			return err
		})
		if backup.Rows == 0 {
			t.Errorf("%+v", backup)
		}
	})
	first.insert(t, "b")

	t.Run("a requested one is made once, also after restarts", func(t *testing.T) {
		names := func() string {
			said, err := tr.admin(third, tr.callers).Status(t.Context())
			tr.must(err)
			var requests []string
			for _, b := range said.Backups {
				requests = append(requests, b.Request)
			}
			return strings.Join(requests, " ")
		}
		ask := func(request, want string) {
			third.tell(status, v1alpha1.Backup{Interval: metav1.Duration{Duration: time.Hour}, Keep: 3, Request: request})
			supervisortest.Eventually(t, request+" is reported", func() error {
				if got := names(); got != want || len(third.clusters) > 0 {
					return fmt.Errorf("there are %q", got)
				}
				return nil
			})
		}
		ask("before-it", "before-it ")
		tr.must(third.halt())
		tr.start(third, status)
		tr.untilConnected(third, 3)
		ask("before-it", "before-it ")
		ask("after-it", "after-it before-it ")
	})
	t.Run("from the member that is left", func(t *testing.T) {
		tr.must(errors.Join(second.halt(), third.halt()))
		status = tr.recovery(first, v1alpha1.RecoverMember, "", 1000)
		recovered, said := tr.recover(first, status, first)
		if said.ClusterID == one.ClusterID || len(said.Members) != 1 {
			t.Fatalf("the new cluster is %+v", said)
		}
		if got := first.content(t); got != "a b" {
			t.Errorf("it holds %q", got)
		}
		tr.must(first.halt())
		tr.start(first, status) // the operator had no time to record the new cluster
		if again := tr.untilConnected(first, 1); again.ClusterID != said.ClusterID {
			t.Errorf("after a restart the cluster is %s, not %s", again.ClusterID, said.ClusterID)
		}
		status = recovered
	})
	t.Run("the others set their files aside and join", func(t *testing.T) {
		tr.start(second, status)
		tr.untilConnected(second, 2)
		tr.start(third, status)
		if said := tr.untilConnected(third, 3); said.ClusterID != status.ClusterID {
			t.Errorf("third is %+v", said)
		}
		for _, m := range all {
			aside, err := filepath.Glob(newFiles(m.options).path + ".aside-*")
			if err != nil || len(aside) != 1 {
				t.Errorf("%s keeps %q, %v", m.options.Node, aside, err)
			}
		}
	})
	t.Run("from a backup, while all members run", func(t *testing.T) {
		status = tr.recovery(third, v1alpha1.RecoverBackup, backup.Name, 2000)
		status, _ = tr.recover(third, status, all...)
		for _, m := range all {
			if said := tr.untilConnected(m, 3); said.ClusterID != status.ClusterID {
				t.Errorf("%s is of cluster %s, not %s", m.options.Node, said.ClusterID, status.ClusterID)
			}
		}
		if got := third.content(t); got != "a" {
			t.Errorf("it holds %q", got)
		}
	})
	t.Run("from nothing", func(t *testing.T) {
		status, _ = tr.recover(second, tr.recovery(second, v1alpha1.RecoverRebuild, "", 3000), all...)
		tr.untilConnected(first, 3)
		if got := second.content(t); got != "" {
			t.Errorf("it holds %q", got)
		}
	})
}

// TestANodeWithAnotherAddress checks that the only member of a database does not start at another address, reports its file as
// intact, and recovers from it.
func TestANodeWithAnotherAddress(t *testing.T) {
	tr := newTrial(t)
	m, before := tr.bootstrap("cp-1", "127.0.3.10")
	m.insert(t, "a")
	status := v1alpha1.DatabaseStatus{BootstrapNode: "cp-1", ClusterID: before.ClusterID, Members: []v1alpha1.DatabaseMember{
		{Node: "cp-1", Address: "127.0.3.10", ServerID: before.ServerID},
	}}
	tr.must(m.halt())

	const address = "127.0.3.11"
	m.options.Address, m.options.Listen, m.options.HealthAddress = netip.MustParseAddr(address), netip.MustParseAddr(address), address+":6662"
	tr.start(m, status)
	supervisortest.Eventually(t, "the member reports its file", func() error {
		said, err := tr.admin(m, tr.callers).Status(t.Context())
		if err == nil && (said.Waiting == "" || !said.NeedsRejoin || said.MovedClusterID != before.ClusterID) {
			err = fmt.Errorf("it reports %+v", said)
		}
		return err
	})
	status, after := tr.recover(m, tr.recovery(m, v1alpha1.RecoverMember, "", 1000), m)
	if after.ClusterID == before.ClusterID || len(after.Members) != 1 || !strings.Contains(after.Address, address) {
		t.Errorf("the new cluster is %+v", after)
	}
	if got := m.content(t); got != "a" {
		t.Errorf("it holds %q", got)
	}
	tr.must(m.halt())
	tr.start(m, status)
	if again := tr.untilConnected(m, 1); again.ClusterID != after.ClusterID {
		t.Errorf("after a restart the cluster is %s, not %s", again.ClusterID, after.ClusterID)
	}
}

// TestWhoWasAwayIsSuperseded checks that a running member that learns of a recovery only after its end leaves its cluster and
// joins the new one.
func TestWhoWasAwayIsSuperseded(t *testing.T) {
	tr := newTrial(t)
	away, node := tr.add("cp-1", "127.0.3.5"), tr.add("cp-2", "127.0.3.6")
	tr.start(away, v1alpha1.DatabaseStatus{BootstrapNode: "cp-1"})
	old := tr.untilConnected(away, 1)
	away.insert(t, "old")
	status := tr.recovery(node, v1alpha1.RecoverRebuild, "", 1000)
	tr.start(node, status)
	status, _ = tr.recover(node, status, node)
	if said := tr.untilConnected(away, 1); said.ClusterID != old.ClusterID {
		t.Fatalf("it is %+v before it could know", said)
	}
	away.tell(status, v1alpha1.Backup{})
	if said := tr.untilConnected(away, 2); said.ClusterID != status.ClusterID || away.content(t) != "" {
		t.Errorf("it is %+v and holds %q", said, away.content(t))
	}
}

// TestAMemberThatWaitsForARecoveryDoesNotLead checks that the only member of a replaced cluster, which has no other member to
// transfer its leadership to, reports that it no longer leads.
func TestAMemberThatWaitsForARecoveryDoesNotLead(t *testing.T) {
	tr := newTrial(t)
	m, _ := tr.bootstrap("cp-1", "127.0.3.15")
	if !<-m.leads {
		t.Fatal("the only member does not lead")
	}
	elsewhere := tr.recovery(m, v1alpha1.RecoverRebuild, "", 1000)
	elsewhere.BootstrapNode, elsewhere.Recovery.Node = "cp-2", "cp-2"
	m.tell(elsewhere, v1alpha1.Backup{})
	supervisortest.Eventually(t, "the member waits", func() error {
		said, err := tr.admin(m, tr.callers).Status(t.Context())
		if err == nil && said.Waiting == "" {
			err = fmt.Errorf("it reports %+v", said)
		}
		return err
	})
	leads := true
	supervisortest.Eventually(t, "the member does not lead", func() error {
		for len(m.leads) > 0 {
			leads = <-m.leads
		}
		if leads {
			return errors.New("it still leads")
		}
		return nil
	})
}

func TestWhenABackupIsDue(t *testing.T) {
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	daily := v1alpha1.Backup{Interval: metav1.Duration{Duration: 24 * time.Hour}}
	asked := v1alpha1.Backup{Interval: daily.Interval, Request: "r"}
	serves := v1alpha1.DatabaseStatus{ClusterID: "c"}
	reported, recovering := serves, serves
	reported.RequestedBackup = &v1alpha1.BackupStatus{Request: "r"}
	recovering.Recovery = &v1alpha1.RecoveryStatus{Phase: v1alpha1.RecoveryFilling}
	hourOld := []adminapi.Backup{{Name: "a", Time: at.Add(-time.Hour)}}
	for _, c := range []struct {
		name    string
		there   []adminapi.Backup
		wanted  v1alpha1.Backup
		status  v1alpha1.DatabaseStatus
		request string
		wait    time.Duration
	}{
		{"the first", nil, daily, serves, "", 0},
		{"none was wanted", nil, v1alpha1.Backup{}, serves, "", never},
		{"the last one is an hour old", hourOld, daily, serves, "", 23 * time.Hour},
		{"the clock was set back", []adminapi.Backup{{Time: at.Add(1000 * time.Hour)}}, daily, serves, "", 24 * time.Hour},
		{"one is asked for", hourOld, asked, serves, "r", 0},
		{"and no other one", nil, v1alpha1.Backup{Request: "r"}, serves, "r", 0},
		{"it is there", append([]adminapi.Backup{{Request: "r", Time: at}}, hourOld...), asked, serves, "", 24 * time.Hour},
		{"it was requested, and this member joined later", hourOld, asked, reported, "", 23 * time.Hour},
		{"there is no database yet", nil, asked, v1alpha1.DatabaseStatus{}, "", never},
		{"a recovery is under way", nil, asked, recovering, "", never},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := backups{all: c.there}
			if request, wait := b.due(c.wanted, c.status, at); request != c.request || wait != c.wait {
				t.Errorf("%q in %s; want %q in %s", request, wait, c.request, c.wait)
			}
		})
	}
}

func TestBackups(t *testing.T) {
	tr := newTrial(t)
	m, _ := tr.bootstrap("cp-1", "127.0.3.8")
	m.insert(t, "a")
	f := newFiles(m.options)
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	server := func(ctx context.Context) (*jsonrpc.Conn, error) { return jsonrpc.Dial(ctx, m.options.socket()) }
	for i := range 4 {
		if _, err := f.backUpFrom(t.Context(), server, plannedBackup{at: at.Add(time.Duration(i) * time.Hour), keep: 2}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := f.listBackups()
	tr.must(err)
	if len(all) != 2 || !all[0].Time.Equal(at.Add(3*time.Hour)) || all[1].Name != "ovnsb_db-20261121T120000Z.db" {
		t.Fatalf("there are %+v", all)
	}
	newest := filepath.Join(f.backups(), all[0].Name)
	t.Run("a damaged file is not used", func(t *testing.T) {
		info, err := os.Stat(newest)
		tr.must(err)
		content, err := os.ReadFile(newest)
		tr.must(err)
		for n, damaged := range [][]byte{content[:info.Size()-20], []byte(strings.Replace(string(content), "192.0.2.1", "192.0.2.7", 1)), {}} {
			path := filepath.Join(t.TempDir(), fmt.Sprint(n))
			tr.must(os.WriteFile(path, damaged, 0o600))
			if rows, err := f.verify(t.Context(), path); err == nil {
				t.Errorf("damage %d is not seen: %d rows", n, rows)
			}
		}
	})
	t.Run("all columns are in it", func(t *testing.T) {
		var rows []struct{ Rows []map[string]any }
		text, err := f.run(t.Context(), "query", newest, `["OVN_Southbound",{"op":"select","table":"Address_Set","where":[]}]`)
		tr.must(err)
		tr.must(json.Unmarshal([]byte(text), &rows))
		live := m.transact(t, map[string]any{"op": "select", "table": "Address_Set", "where": []any{}})
		if len(rows[0].Rows) != 1 || len(live[0].Rows) != 1 || rows[0].Rows[0]["addresses"] != "192.0.2.1" {
			t.Errorf("it holds %v", rows)
		}
	})
	t.Run("a requested backup stays while the request does", func(t *testing.T) {
		for n, p := range []plannedBackup{{request: "r", pinned: "r"}, {pinned: "r"}, {pinned: "r"}, {pinned: "s"}} {
			p.at, p.keep = at.Add(time.Duration(4+n)*time.Hour), 1
			_, err := f.backUpFrom(t.Context(), server, p)
			tr.must(err)
			there, err := f.listBackups()
			tr.must(err)
			want := []string{"r", " r", " r", ""}[n]
			var requests []string
			for _, b := range there {
				requests = append(requests, b.Request)
			}
			if got := strings.Join(requests, " "); got != want {
				t.Errorf("after %d there are %q; want %q", n, got, want)
			}
		}
	})
	t.Run("leftovers of a crash are removed", func(t *testing.T) {
		left := filepath.Join(f.backups(), "ovnsb_db-20261121T090000Z.db.new")
		tr.must(os.WriteFile(left, nil, 0o600))
		_, err := f.backUpFrom(t.Context(), server, plannedBackup{at: at.Add(9 * time.Hour), keep: 2})
		tr.must(err)
		if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there: %v", left, err)
		}
	})
}
