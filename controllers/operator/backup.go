// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
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
				status.LastBackup = &v1alpha1.BackupStatus{Name: b.Name, Node: node, Time: metav1.NewTime(b.Time), Rows: b.Rows}
			}
		}
	}
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
