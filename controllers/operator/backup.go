// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

// backupSlack is how long after it is due a backup is looked for: members make them by themselves, and nothing tells.
const backupSlack = 10 * time.Second

// lastBackup is for alerts.
var lastBackup = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "kiln_database_last_backup_timestamp_seconds",
	Help: "When the newest verified backup of a database that its members tell of was made; by database.",
}, []string{"database"})

func init() { metrics.Registry.MustRegister(lastBackup) }

// recordBackups takes down the newest backup that members tell of. What was known stays while nobody tells of a newer one.
func (p *pass) recordBackups(db render.Database, reports map[string]adminapi.Status) {
	status := p.database(db)
	for _, node := range sortedNodes(reports) {
		report := reports[node]
		if report.BackupFailure != "" {
			p.notes[db.Workload] = note{stuck: true, text: fmt.Sprintf("node %s has made no backup: %s", node, report.BackupFailure)}
		}
		for _, b := range report.Backups {
			if status.LastBackup == nil || b.Time.After(status.LastBackup.Time.Time) {
				status.LastBackup = backupStatus(node, b)
			}
		}
	}
	p.recordRequest(db, reports)
	interval := p.config.Spec.Central.Backup.Interval.Duration
	if status.LastBackup == nil {
		if interval > 0 && db.Flag == render.Northbound.Flag && status.Leader != "" {
			p.wakeAt(p.now.Add(backupSlack))
		}
		return
	}
	lastBackup.WithLabelValues(db.Flag).Set(float64(status.LastBackup.Time.Unix()))
	if due := status.LastBackup.Time.Add(interval + backupSlack); interval > 0 {
		if due.Before(p.now) {
			due = p.now.Add(interval)
		}
		p.wakeAt(due)
	}
}

func backupStatus(node string, b adminapi.Backup) *v1alpha1.BackupStatus {
	return &v1alpha1.BackupStatus{Name: b.Name, Node: node, Time: metav1.NewTime(b.Time), Rows: b.Rows, Request: b.Request}
}

// recordRequest takes down that the backup that was asked for is there, once all members have it that serve. From then on nobody makes it any more: a
// member that comes later would give its name to what is there then.
func (p *pass) recordRequest(db render.Database, reports map[string]adminapi.Status) {
	status, request := p.database(db), p.config.Spec.Central.Backup.Request
	if db.Flag != render.Northbound.Flag || request == "" || status.Requested(request) {
		return
	}
	var made *v1alpha1.BackupStatus
	var waits []string
	for _, node := range sortedNodes(reports) {
		at := slices.IndexFunc(reports[node].Backups, func(b adminapi.Backup) bool { return b.Request == request })
		switch {
		case at >= 0:
			made = backupStatus(node, reports[node].Backups[at])
		case reports[node].Connected:
			waits = append(waits, node)
		}
	}
	if made != nil && len(waits) == 0 {
		status.RequestedBackup = made
		return
	}
	p.wakeAt(p.now.Add(membershipDelay)) // members make it by themselves, and nothing tells
	if _, noted := p.notes[db.Workload]; !noted {
		p.notes[db.Workload] = note{text: fmt.Sprintf("backup %s waits for nodes: %s", request, cmp.Or(strings.Join(waits, ", "), "none serves"))}
	}
}
