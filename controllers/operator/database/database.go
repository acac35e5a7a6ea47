// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package database

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
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/raft"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// Run runs the members of all databases. It returns nil when each has a leader. If one does not, the next ones run only if it already exists: they
// exist, too, and probably have the same problem, and their repair must not wait for it.
func (r *Runner) Run(ctx context.Context, in *Input) error {
	var ended error
	for _, db := range render.Databases {
		p := r.of(in, db)
		err := p.run(ctx)
		if ended = errors.Join(ended, err); err == nil {
			continue
		}
		if exists := p.record.ClusterID != "" || p.record.Recovering(); !exists || !errors.As(err, new(*status.Halt)) {
			break
		}
	}
	return ended
}

// noteFailures reports failures of the members' nodes that a person has to repair: a disk that is not writable, and ports that cannot be protected. Their
// members wait.
func (p *run) noteFailures() {
	for _, node := range slices.Sorted(maps.Keys(p.reports)) {
		for _, why := range []string{p.reports[node].DiskFailure, p.reports[node].Unguarded} {
			if why != "" {
				p.Report.Note(p.db.Workload, status.Note{Stuck: true, Text: fmt.Sprintf("node %s: %s", node, why)})
			}
		}
	}
}

// noteStarts records why members have not started their servers.
func (p *run) noteStarts() {
	for _, pod := range p.Report.PodsOf(p.db.Workload) {
		if why := p.reports[pod.Spec.NodeName].Waiting; why != "" {
			p.Report.NoteStart(pod, why)
		}
	}
}

// run runs the members of a database and records their reports. It returns nil when the database has a leader.
func (p *run) run(ctx context.Context) error {
	if err := p.Objects.Apply(ctx, render.DatabaseObjects(p.Config, p.db)...); err != nil {
		return err
	}
	unheard := p.askMembers(ctx)
	p.recordBackups()
	p.noteFailures()
	p.noteStarts()
	// If no ready member answers, the state of the database is unknown and the recorded status stays.
	if unheard == nil || len(p.reports) > 0 {
		if err := raft.Record(p.record, p.reports); err != nil {
			return &status.Halt{Reason: "ForeignDatabase", Message: fmt.Sprintf("%s: %s", p.db.Title, err), Degraded: true}
		}
	}
	if err := p.removeMisplaced(ctx); err != nil {
		return err
	}
	p.finishRecovery()
	p.Archive.Follow(p.record)
	p.keepMembers()
	m := p.membership()
	step := m.Next()
	if err := p.take(ctx, step); err != nil {
		return err
	}
	// Without a leader the database does not serve, so replacing a pod interrupts no client.
	if step.Action == raft.ActionNone && (p.Plan.Allows(p.db.Workload) || p.record.Leader == "" && !p.Plan.Held) {
		if err := p.replaceOutdated(ctx); err != nil {
			return err
		}
	}
	if p.record.Leader == "" && m.QuorumLost() && !p.record.Recovering() {
		return &status.Halt{Reason: "QuorumLost", Degraded: true, Message: m.DescribeLoss(p.db.Title)}
	}
	if err := p.convertSchema(ctx); err != nil {
		return err
	}
	return p.await(ctx, unheard, step)
}

// await returns nil if the database has a leader. unheard is the error of a ready member that did not answer.
func (p *run) await(ctx context.Context, unheard error, step raft.Step) error {
	if unheard != nil {
		why := fmt.Sprintf("a member of the %s is ready but does not answer on its admin endpoint, port %d", p.db.Title, p.db.AdminPort)
		if len(p.reports) == 0 || p.record.ClusterID == "" || p.record.Leader == "" {
			return &status.Halt{Reason: "WaitingForDatabase", Retry: unheard, Message: why}
		}
		// The other members have a leader, which is enough for the following phases.
		log.FromContext(ctx).Error(unheard, "going on without a member")
		p.Report.Note(p.db.Workload, status.Note{Text: why})
		p.Report.WakeAfter(askRetry)
	}
	switch {
	case p.record.ClusterID != "" && p.record.Leader != "":
		return nil
	case p.record.ClusterID == "" && p.record.Recovering():
		return &status.Halt{Reason: "Recovering", Message: fmt.Sprintf("the %s: %s", p.db.Title, step.Message)}
	}
	return &status.Halt{Reason: "WaitingForDatabase", Message: fmt.Sprintf("the %s has no leader yet", p.db.Title)}
}

// askMembers requests a report from every member on a node that answers, and sets reports. It returns
// errors of ready members only.
func (p *run) askMembers(ctx context.Context) error {
	config, err := p.adminTLS()
	if err != nil {
		return err
	}
	p.reports = map[string]adminapi.Status{}
	var failures []error
	for _, pod := range p.Report.PodsOf(p.db.Workload) {
		if pod.Status.PodIP == "" || !pod.DeletionTimestamp.IsZero() || observed.Silent(p.Report.Node(pod.Spec.NodeName)) {
			continue
		}
		if !observed.Ready(pod) {
			p.Report.WakeAfter(membershipDelay) // it may report later that it waits for the operator
		}
		report, err := p.ask(ctx, config, pod.Status.PodIP)
		if err != nil {
			if observed.Ready(pod) {
				failures = append(failures, err)
			}
			continue
		}
		p.reports[pod.Spec.NodeName] = report
		p.Versions.Note(pod, report.Versions)
	}
	return errors.Join(failures...)
}

// finishRecovery completes a recovery when the writer of the database has written everything, as a label of its pod
// reports.
func (p *run) finishRecovery() {
	if !p.record.Recovering() || p.record.ClusterID == "" {
		return
	}
	for _, pod := range p.Report.PodsOf(p.db.Writer) {
		if pod.Labels[p.db.WrittenLabel] == p.record.ClusterID && pod.DeletionTimestamp.IsZero() {
			p.record.Recovery.Phase, p.record.Recovery.CompletionTime = v1alpha1.RecoveryCompleted, new(metav1.NewTime(p.Report.Now))
			p.Recorder.Eventf(p.OVNCluster, nil, corev1.EventTypeNormal, "DatabaseRecovered", "Reconcile", "%s", status.EventNote(fmt.Sprintf(
				"%s: recovery %s is complete: %s on node %s", p.db.Title, p.record.Recovery.ID, p.record.Recovery.Source, p.record.Recovery.Node)))
			return
		}
	}
	p.Report.Note(p.db.Workload, status.Note{Text: fmt.Sprintf("recovery %s waits for %s to bring the database up to date", p.record.Recovery.ID, p.db.Writer)})
}

// removeMisplaced deletes pods on nodes without a member, and unscheduled pods that were created for a different set of
// nodes. The StatefulSet then creates them where a member has no pod.
func (p *run) removeMisplaced(ctx context.Context) error {
	nodes := memberNodes(*p.record)
	set, isSet := p.Objects.Live(p.db.Workload).(*appsv1.StatefulSet)
	current := isSet && set.Status.ObservedGeneration >= set.Generation // otherwise it would create them for the same nodes
	for _, pod := range p.Report.PodsOf(p.db.Workload) {
		misplaced := !slices.Contains(nodes, pod.Spec.NodeName)
		if pod.Spec.NodeName == "" {
			may := observed.AllowedNodes(pod)
			misplaced = current && len(may) > 0 && !sets.New(may...).Equal(sets.New(nodes...))
		}
		// The kubelet of a node that does not answer never confirms the end of a pod, and the StatefulSet waits for it
		// before it reuses the name. A forced deletion is safe: a process that still runs there is not a member.
		stuck := misplaced && observed.Silent(p.Report.Node(pod.Spec.NodeName))
		if !misplaced || !stuck && !pod.DeletionTimestamp.IsZero() {
			continue
		}
		var options []client.DeleteOption
		if stuck {
			options = append(options, client.GracePeriodSeconds(0))
		}
		if err := p.Objects.Delete(ctx, pod, options...); err != nil {
			return err
		}
	}
	return nil
}

// replaceOutdated deletes the pod of one member with an outdated template; the StatefulSet re-creates it. It replaces one
// member at a time, only while all others serve, and the leader last. A member serves if its own report says so: a pod on
// a dead node stays ready for a while.
func (p *run) replaceOutdated(ctx context.Context) error {
	set, isSet := p.Objects.Live(p.db.Workload).(*appsv1.StatefulSet)
	if !isSet || set.Status.ObservedGeneration < set.Generation || set.Status.UpdateRevision == "" {
		return nil
	}
	pods := p.Report.PodsOf(p.db.Workload)
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return strings.Compare(a.Labels[p.db.LeaderLabel]+a.Name, b.Labels[p.db.LeaderLabel]+b.Name)
	})
	members := make([]rollout.Pod, 0, len(pods))
	for _, pod := range pods {
		member := p.Replacer.See(p.Input.Input, p.db.Workload, set.Spec.Template.Annotations[render.TemplateAnnotation], pod)
		member.Ready = member.Ready && p.reports[pod.Spec.NodeName].Connected
		members = append(members, member)
	}
	if i := rollout.NextMember(int(*set.Spec.Replicas), members); i >= 0 {
		pod := pods[i]
		if err := p.Replacer.Replace(ctx, p.Objects, pod); err != nil {
			return err
		}
		return &status.Halt{Reason: "UpdatingDatabase", Message: fmt.Sprintf(
			"the member of the %s on node %s restarts with its new template", p.db.Title, pod.Spec.NodeName)}
	}
	return nil
}
