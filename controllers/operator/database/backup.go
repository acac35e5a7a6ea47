// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package database

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
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/raft"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/controllers/operator/upgrade"
	"github.com/kiln-net/kiln/internal/workload"
	"github.com/kiln-net/kiln/supervisor/adminapi"
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

// Archive is the report of the backups pod and its claim.
type Archive struct {
	// claim is the name of the PersistentVolumeClaim; empty if the spec names none.
	claim string
	raft.Archive
}

// RunBackups runs the backups pod and returns its report. No other phase waits for it.
func (r *Runner) RunBackups(ctx context.Context, in *Input) (Archive, error) {
	claim := in.Config.Spec.Central.Backup.PersistentVolumeClaim
	if claim == nil {
		return Archive{}, nil
	}
	objects := render.BackupsObjects(in.Config)
	live, err := observed.Workload(ctx, in.Objects, in.Config.Namespace, render.BackupsName)
	if err != nil {
		return Archive{}, err
	}
	if makesBackups(live, claim.ClaimName) {
		upgrade.HoldBack(in.Plan, objects, live)
	}
	if err := in.Objects.Apply(ctx, objects...); err != nil {
		return Archive{}, err
	}
	a := Archive{claim: claim.ClaimName}
	config, err := in.callTLS(adminapi.ArchiveName, in.Authorities[certs.NorthboundClient])
	if err != nil {
		return a, err
	}
	for _, pod := range in.Report.PodsOf(render.BackupsName) {
		if !observed.Ready(pod) || !pod.DeletionTimestamp.IsZero() || observed.Silent(in.Report.Node(pod.Spec.NodeName)) {
			continue
		}
		report, err := r.askAt(ctx, config, pod.Status.PodIP, adminapi.PortArchive)
		if err != nil {
			in.Report.Note(render.BackupsName, status.Note{Text: err.Error()})
			in.Report.WakeAfter(backupSlack)
			continue
		}
		r.Versions.Note(pod, report.Versions)
		a.Archive = raft.Archive{Address: pod.Status.PodIP, Status: report}
	}
	return a, nil
}

// makesBackups reports whether the workload is ready and uses this claim. If not, upgrade.HoldBack does not apply to it: backups
// are most important during a held upgrade, and a new pod loses none.
func makesBackups(live client.Object, claim string) bool {
	return workload.ProgressOf(live).Serves() && slices.ContainsFunc(workload.Template(live).Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim
	})
}

// recordBackups stores the newest reported backup in the status; an older report does not overwrite a newer one.
func (p *run) recordBackups() {
	for _, node := range slices.Sorted(maps.Keys(p.reports)) {
		report := p.reports[node]
		if report.BackupFailure != "" {
			p.Report.Note(p.db.Workload, status.Note{Stuck: true, Aside: true, Text: fmt.Sprintf("backups on node %s fail: %s", node, report.BackupFailure)})
			p.Report.WakeAfter(backupRetry)
		}
		for _, b := range report.Backups {
			if p.record.LastBackup == nil || b.Time.After(p.record.LastBackup.Time.Time) {
				p.record.LastBackup = backupStatus(node, b)
			}
		}
	}
	p.awaitBackup(p.record.LastBackup, "node")
	if p.db.Backed {
		p.recordArchive()
		p.recordRequest()
	}
}

// recordArchive stores the newest backup on the claim in the status.
func (p *run) recordArchive() {
	if p.Archive.claim == "" {
		p.record.LastBackupOnClaim = nil
		lastBackup.DeleteLabelValues(p.db.Flag, "claim")
		return
	}
	if p.Archive.BackupFailure != "" {
		p.Report.Note(render.BackupsName, status.Note{Stuck: true, Text: fmt.Sprintf("backups on the claim %s fail: %s", p.Archive.claim, p.Archive.BackupFailure)})
		p.Report.WakeAfter(backupRetry)
	}
	if all := p.Archive.Backups; len(all) > 0 {
		p.record.LastBackupOnClaim = p.Archive.status(all[0])
	}
	p.awaitBackup(p.record.LastBackupOnClaim, "claim")
}

// awaitBackup exports the time of the last backup and schedules a pass after the next one.
func (p *run) awaitBackup(last *v1alpha1.BackupStatus, place string) {
	interval := p.Config.Spec.Central.Backup.Interval.Duration
	if last == nil {
		if interval > 0 && p.db.Backed && p.record.Leader != "" {
			p.Report.WakeAfter(backupSlack)
		}
		return
	}
	lastBackup.WithLabelValues(p.db.Flag, place).Set(float64(last.Time.Unix()))
	if due := last.Time.Add(interval + backupSlack); interval > 0 {
		if due.Before(p.Report.Now) {
			due = p.Report.Now.Add(min(interval, backupRetry))
		}
		p.Report.WakeAt(due)
	}
}

func (a Archive) status(b adminapi.Backup) *v1alpha1.BackupStatus {
	s := backupStatus("", b)
	s.PersistentVolumeClaim = a.claim
	return s
}

func backupStatus(node string, b adminapi.Backup) *v1alpha1.BackupStatus {
	return &v1alpha1.BackupStatus{Name: b.Name, Node: node, Time: metav1.NewTime(b.Time), Rows: b.Rows, Request: b.Request}
}

// recordRequest records the requested backup in the status when all connected members and the claim have it. Recording it
// stops further attempts: a member that joins later would otherwise use the request's name for a backup of newer data.
func (p *run) recordRequest() {
	request := p.Config.Spec.Central.Backup.Request
	if request == "" || p.record.Requested(request) {
		return
	}
	var made *v1alpha1.BackupStatus
	var waits []string
	asked := func(b adminapi.Backup) bool { return b.Request == request }
	for _, node := range slices.Sorted(maps.Keys(p.reports)) {
		at := slices.IndexFunc(p.reports[node].Backups, asked)
		switch {
		case at >= 0:
			made = backupStatus(node, p.reports[node].Backups[at])
		case p.reports[node].Connected:
			waits = append(waits, "node "+node)
		}
	}
	if p.Archive.claim != "" && !slices.ContainsFunc(p.Archive.Backups, asked) {
		waits = append(waits, "claim "+p.Archive.claim)
	}
	if made != nil && len(waits) == 0 {
		p.record.RequestedBackup = made
		return
	}
	p.Report.WakeAfter(membershipDelay) // members make it by themselves, and no watch reports it
	if !p.Report.Noted(p.db.Workload) {
		p.Report.Note(p.db.Workload, status.Note{Aside: true, Text: fmt.Sprintf("backup %s waits for %s", request, cmp.Or(strings.Join(waits, ", "), "a member that serves"))})
	}
}
