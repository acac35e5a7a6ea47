// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/raft"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

// backupRetry is the delay before the operator checks again after a failed backup. Members retry after a minute.
const backupRetry = time.Minute + backupSlack

// backupSlack is the delay between the due time of a backup and the check for it. Members make backups by themselves, and
// no watch reports them.
const backupSlack = 10 * time.Second

// lastBackup is a metric for alerts.
var lastBackup = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "kiln_database_last_backup_timestamp_seconds",
	Help: "When the newest verified backup of a database was made; by database, and by where it is: on a node, or on the claim.",
}, []string{"database", "on"})

func init() { metrics.Registry.MustRegister(lastBackup) }

// archive is the report of the backups pod and its claim.
type archive struct {
	// claim is the name of the PersistentVolumeClaim; empty if the spec names none.
	claim string
	raft.Archive
}

// runBackups runs the backups pod. No other phase waits for it.
func (r *Reconciler) runBackups(ctx context.Context, p *pass) error {
	claim := p.config.Spec.Central.Backup.PersistentVolumeClaim
	if claim == nil {
		return nil
	}
	objects := render.BackupsObjects(p.config)
	live, err := r.workload(ctx, p, render.BackupsName)
	if err != nil {
		return err
	}
	if makesBackups(live, claim.ClaimName) {
		p.holdBack(objects, live)
	}
	if err := r.apply(ctx, p, objects); err != nil {
		return err
	}
	p.archive = archive{claim: claim.ClaimName}
	config, err := callTLS(p, adminapi.ArchiveName, p.authorities[certs.NorthboundClient])
	if err != nil {
		return err
	}
	for _, pod := range p.podsOf(render.BackupsName) {
		if !ready(pod) || !pod.DeletionTimestamp.IsZero() || silent(p.node(pod.Spec.NodeName)) {
			continue
		}
		report, err := r.askAt(ctx, config, pod.Status.PodIP, adminapi.PortArchive)
		if err != nil {
			p.note(render.BackupsName, note{text: err.Error()})
			p.wakeAt(p.now.Add(backupSlack))
			continue
		}
		r.versions.note(containerOf(pod), report.Versions)
		p.archive.Archive = raft.Archive{Address: pod.Status.PodIP, Status: report}
	}
	return nil
}

// makesBackups reports whether the workload is ready and uses this claim. If not, holdBack does not apply to it: backups
// are most important during a held upgrade, and a new pod loses none.
func makesBackups(live client.Object, claim string) bool {
	return progressOf(live).serves() && slices.ContainsFunc(render.Template(live).Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
}

// recordBackups stores the newest reported backup in the status; an older report does not overwrite a newer one.
func (p *pass) recordBackups(db render.Database, reports map[string]adminapi.Status) {
	status := p.database(db)
	for _, node := range slices.Sorted(maps.Keys(reports)) {
		report := reports[node]
		if report.BackupFailure != "" {
			p.note(db.Workload, note{stuck: true, aside: true, text: fmt.Sprintf("backups on node %s fail: %s", node, report.BackupFailure)})
			p.wakeAt(p.now.Add(backupRetry))
		}
		for _, b := range report.Backups {
			if status.LastBackup == nil || b.Time.After(status.LastBackup.Time.Time) {
				status.LastBackup = backupStatus(node, b)
			}
		}
	}
	p.awaitBackup(db, status.LastBackup, "node")
	if db.Flag == render.Northbound.Flag {
		p.recordArchive(db)
		p.recordRequest(db, reports)
	}
}

// recordArchive stores the newest backup on the claim in the status.
func (p *pass) recordArchive(db render.Database) {
	status := p.database(db)
	if p.archive.claim == "" {
		status.LastBackupOnClaim = nil
		lastBackup.DeleteLabelValues(db.Flag, "claim")
		return
	}
	if p.archive.BackupFailure != "" {
		p.note(render.BackupsName, note{stuck: true, text: fmt.Sprintf("backups on the claim %s fail: %s", p.archive.claim, p.archive.BackupFailure)})
		p.wakeAt(p.now.Add(backupRetry))
	}
	if all := p.archive.Backups; len(all) > 0 {
		status.LastBackupOnClaim = p.archive.status(all[0])
	}
	p.awaitBackup(db, status.LastBackupOnClaim, "claim")
}

// awaitBackup exports the time of the last backup and schedules a pass after the next one.
func (p *pass) awaitBackup(db render.Database, last *v1alpha1.BackupStatus, place string) {
	interval := p.config.Spec.Central.Backup.Interval.Duration
	if last == nil {
		if interval > 0 && db.Flag == render.Northbound.Flag && p.database(db).Leader != "" {
			p.wakeAt(p.now.Add(backupSlack))
		}
		return
	}
	lastBackup.WithLabelValues(db.Flag, place).Set(float64(last.Time.Unix()))
	if due := last.Time.Add(interval + backupSlack); interval > 0 {
		if due.Before(p.now) {
			due = p.now.Add(min(interval, backupRetry))
		}
		p.wakeAt(due)
	}
}

func (a archive) status(b adminapi.Backup) *v1alpha1.BackupStatus {
	s := backupStatus("", b)
	s.PersistentVolumeClaim = a.claim
	return s
}

func backupStatus(node string, b adminapi.Backup) *v1alpha1.BackupStatus {
	return &v1alpha1.BackupStatus{Name: b.Name, Node: node, Time: metav1.NewTime(b.Time), Rows: b.Rows, Request: b.Request}
}

// recordRequest records the requested backup in the status when all connected members and the claim have it. Recording it
// stops further attempts: a member that joins later would otherwise use the request's name for a backup of newer data.
func (p *pass) recordRequest(db render.Database, reports map[string]adminapi.Status) {
	status, request := p.database(db), p.config.Spec.Central.Backup.Request
	if request == "" || status.Requested(request) {
		return
	}
	var made *v1alpha1.BackupStatus
	var waits []string
	asked := func(b adminapi.Backup) bool { return b.Request == request }
	for _, node := range slices.Sorted(maps.Keys(reports)) {
		at := slices.IndexFunc(reports[node].Backups, asked)
		switch {
		case at >= 0:
			made = backupStatus(node, reports[node].Backups[at])
		case reports[node].Connected:
			waits = append(waits, "node "+node)
		}
	}
	if p.archive.claim != "" && !slices.ContainsFunc(p.archive.Backups, asked) {
		waits = append(waits, "claim "+p.archive.claim)
	}
	if made != nil && len(waits) == 0 {
		status.RequestedBackup = made
		return
	}
	p.wakeAt(p.now.Add(membershipDelay)) // members make it by themselves, and no watch reports it
	if len(p.notes[db.Workload]) == 0 {
		p.note(db.Workload, note{aside: true, text: fmt.Sprintf("backup %s waits for %s", request, cmp.Or(strings.Join(waits, ", "), "a member that serves"))})
	}
}
