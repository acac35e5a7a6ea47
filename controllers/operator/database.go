// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/raft"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

func (r *Reconciler) runNorthbound(ctx context.Context, p *pass) error {
	err := r.runDatabase(ctx, p, render.Northbound)
	if status := p.cluster.Status.Northbound; errors.As(err, new(*halt)) && (status.ClusterID != "" || status.Recovering()) {
		// The southbound database already exists and probably has the same problem. Its repair must not wait for the
		// northbound database.
		return errors.Join(err, r.runDatabase(ctx, p, render.Southbound))
	}
	return err
}

func (r *Reconciler) runSouthbound(ctx context.Context, p *pass) error {
	return r.runDatabase(ctx, p, render.Southbound)
}

// noteFailures reports failures of the members' nodes that a person has to repair: a disk that is not writable, and ports that cannot be protected. Their
// members wait.
func (p *pass) noteFailures(db render.Database, reports map[string]adminapi.Status) {
	for _, node := range slices.Sorted(maps.Keys(reports)) {
		for _, why := range []string{reports[node].DiskFailure, reports[node].Unguarded} {
			if why != "" {
				p.note(db.Workload, note{stuck: true, text: fmt.Sprintf("node %s: %s", node, why)})
			}
		}
	}
}

// hear records why members have not started their servers.
func (p *pass) hear(db render.Database, reports map[string]adminapi.Status) {
	for _, pod := range p.podsOf(db.Workload) {
		if why := reports[pod.Spec.NodeName].Waiting; why != "" {
			p.waiting[pod.Name] = why
		}
	}
}

// runDatabase runs the members of a database and records their reports. It returns nil when the database has a leader.
func (r *Reconciler) runDatabase(ctx context.Context, p *pass, db render.Database) error {
	if err := r.apply(ctx, p, render.DatabaseObjects(p.config, db)); err != nil {
		return err
	}
	reports, askErr := r.askMembers(ctx, p, db)
	status := p.database(db)
	p.recordBackups(db, reports)
	p.noteFailures(db, reports)
	p.hear(db, reports)
	// If no ready member answers, the state of the database is unknown and the recorded status stays.
	if askErr == nil || len(reports) > 0 {
		if err := raft.Record(status, reports); err != nil {
			return &halt{reason: "ForeignDatabase", message: fmt.Sprintf("%s: %s", db.Title, err), degraded: true}
		}
	}
	if err := r.removeMisplaced(ctx, p, db); err != nil {
		return err
	}
	r.finishRecovery(p, db)
	p.archive.Follow(status)
	p.keepMembers(db, reports)
	m := p.membership(db, reports)
	step := m.Next()
	if err := r.take(ctx, p, db, step); err != nil {
		return err
	}
	// Without a leader the database does not serve, so replacing a pod interrupts no client.
	if step.Action == raft.ActionNone && (p.upgrade.Allows(db.Workload) || status.Leader == "" && !p.upgrade.Held) {
		if err := r.replaceOutdated(ctx, p, db, reports); err != nil {
			return err
		}
	}
	if status.Leader == "" && m.QuorumLost() && !status.Recovering() {
		return &halt{reason: "QuorumLost", degraded: true, message: m.DescribeLoss(db.Title)}
	}
	if err := r.convertSchema(ctx, p, db); err != nil {
		return err
	}
	if askErr != nil {
		why := fmt.Sprintf("a member of the %s is ready but does not answer on its admin endpoint, port %d", db.Title, db.AdminPort)
		if len(reports) == 0 || status.ClusterID == "" || status.Leader == "" {
			return &halt{reason: "WaitingForDatabase", retry: askErr, message: why}
		}
		// The other members have a leader, which is enough for the following phases.
		log.FromContext(ctx).Error(askErr, "going on without a member")
		p.note(db.Workload, note{text: why})
		p.wakeAt(p.now.Add(askRetry))
	}
	if status.Recovering() && status.ClusterID == "" {
		return &halt{reason: "Recovering", message: fmt.Sprintf("the %s: %s", db.Title, step.Message)}
	}
	if status.ClusterID == "" || status.Leader == "" {
		return &halt{reason: "WaitingForDatabase", message: fmt.Sprintf("the %s has no leader yet", db.Title)}
	}
	return nil
}

// askMembers requests a report from every member on a node that answers and returns the reports by node. It returns
// errors of ready members only.
func (r *Reconciler) askMembers(ctx context.Context, p *pass, db render.Database) (map[string]adminapi.Status, error) {
	config, err := adminTLS(p, db)
	if err != nil {
		return nil, err
	}
	reports := map[string]adminapi.Status{}
	var failures []error
	for _, pod := range p.podsOf(db.Workload) {
		if pod.Status.PodIP == "" || !pod.DeletionTimestamp.IsZero() || silent(p.node(pod.Spec.NodeName)) {
			continue
		}
		if !ready(pod) {
			p.wakeAt(p.now.Add(membershipDelay)) // it may report later that it waits for the operator
		}
		report, err := r.ask(ctx, config, db, pod.Status.PodIP)
		if err != nil {
			if ready(pod) {
				failures = append(failures, err)
			}
			continue
		}
		reports[pod.Spec.NodeName] = report
		r.versions.note(containerOf(pod), report.Versions)
		if r.versions.noteLevel(containerOf(pod), report.Level) {
			p.wakeAt(p.now) // optional operands depend on it
		}
	}
	return reports, errors.Join(failures...)
}

// finishRecovery completes a recovery when the writer of the database has written everything, as a label of its pod
// reports.
func (r *Reconciler) finishRecovery(p *pass, db render.Database) {
	status := p.database(db)
	if !status.Recovering() || status.ClusterID == "" {
		return
	}
	for _, pod := range p.podsOf(db.Writer) {
		if pod.Labels[db.WrittenLabel] == status.ClusterID && pod.DeletionTimestamp.IsZero() {
			status.Recovery.Phase, status.Recovery.CompletionTime = v1alpha1.RecoveryCompleted, new(metav1.NewTime(p.now))
			r.Recorder.Eventf(p.cluster, nil, corev1.EventTypeNormal, "DatabaseRecovered", "Reconcile", "%s", cut(fmt.Sprintf(
				"%s: recovery %s is complete: %s on node %s", db.Title, status.Recovery.ID, status.Recovery.Source, status.Recovery.Node), maxNote))
			return
		}
	}
	p.note(db.Workload, note{text: fmt.Sprintf("recovery %s waits for %s to bring the database up to date", status.Recovery.ID, db.Writer)})
}

// removeMisplaced deletes pods on nodes without a member, and unscheduled pods that were created for a different set of
// nodes. The StatefulSet then creates them where a member has no pod.
func (r *Reconciler) removeMisplaced(ctx context.Context, p *pass, db render.Database) error {
	nodes := memberNodes(*p.database(db))
	set, isSet := p.live[db.Workload].(*appsv1.StatefulSet)
	observed := isSet && set.Status.ObservedGeneration >= set.Generation // otherwise it would create them for the same nodes
	for _, pod := range p.podsOf(db.Workload) {
		misplaced := !slices.Contains(nodes, pod.Spec.NodeName)
		if pod.Spec.NodeName == "" {
			may := allowedNodes(pod)
			misplaced = observed && len(may) > 0 && !sets.New(may...).Equal(sets.New(nodes...))
		}
		// The kubelet of a node that does not answer never confirms the end of a pod, and the StatefulSet waits for it
		// before it reuses the name. A forced deletion is safe: a process that still runs there is not a member.
		stuck := misplaced && silent(p.node(pod.Spec.NodeName))
		if !misplaced || !stuck && !pod.DeletionTimestamp.IsZero() {
			continue
		}
		var options []client.DeleteOption
		if stuck {
			options = append(options, client.GracePeriodSeconds(0))
		}
		if err := r.remove(ctx, pod, "Pod", options...); err != nil {
			return err
		}
	}
	return nil
}

// replaceOutdated deletes the pod of one member with an outdated template; the StatefulSet re-creates it. It replaces one
// member at a time, only while all others serve, and the leader last. A member serves if its own report says so: a pod on
// a dead node stays ready for a while.
func (r *Reconciler) replaceOutdated(ctx context.Context, p *pass, db render.Database, reports map[string]adminapi.Status) error {
	set, isSet := p.live[db.Workload].(*appsv1.StatefulSet)
	if !isSet || set.Status.ObservedGeneration < set.Generation || set.Status.UpdateRevision == "" {
		return nil
	}
	pods := p.podsOf(db.Workload)
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return strings.Compare(a.Labels[db.LeaderLabel]+a.Name, b.Labels[db.LeaderLabel]+b.Name)
	})
	members := make([]rollout.Pod, 0, len(pods))
	for _, pod := range pods {
		member := r.see(p, db.Workload, set.Spec.Template.Annotations[render.TemplateAnnotation], pod)
		member.Ready = member.Ready && reports[pod.Spec.NodeName].Connected
		members = append(members, member)
	}
	if i := rollout.NextMember(int(*set.Spec.Replicas), members); i >= 0 {
		pod := pods[i]
		if err := r.replace(ctx, pod); err != nil {
			return err
		}
		return &halt{reason: "UpdatingDatabase", message: fmt.Sprintf(
			"the member of the %s on node %s restarts with its new template", db.Title, pod.Spec.NodeName)}
	}
	return nil
}
