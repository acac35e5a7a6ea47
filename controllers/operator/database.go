// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

func (r *Reconciler) runNorthbound(ctx context.Context, p *pass) error {
	err := r.runDatabase(ctx, p, render.Northbound)
	if status := p.cluster.Status.Northbound; errors.As(err, new(*halt)) && (status.ClusterID != "" || status.Recovering()) {
		// The southbound database has been there before, and is most likely in the same trouble: what it takes to mend it must not wait.
		return errors.Join(err, r.runDatabase(ctx, p, render.Southbound))
	}
	return err
}

func (r *Reconciler) runSouthbound(ctx context.Context, p *pass) error {
	return r.runDatabase(ctx, p, render.Southbound)
}

// noteDisks tells of members that wait until their disks can be written.
func (p *pass) noteDisks(db render.Database, reports map[string]adminapi.Status) {
	for _, node := range sortedNodes(reports) {
		if why := reports[node].DiskFailure; why != "" {
			p.note(db.Workload, note{stuck: true, text: fmt.Sprintf("node %s: %s", node, why)})
		}
	}
}

// runDatabase makes the members run, records what they report, and passes when they have a leader.
func (r *Reconciler) runDatabase(ctx context.Context, p *pass, db render.Database) error {
	if err := r.apply(ctx, p, render.DatabaseObjects(p.config, db)); err != nil {
		return err
	}
	reports, askErr := r.askMembers(ctx, p, db)
	status := p.database(db)
	p.recordBackups(db, reports)
	p.noteDisks(db, reports)
	// Not to hear any of the ready members says nothing about the database: what was known stays.
	if askErr == nil || len(reports) > 0 {
		if err := record(status, reports); err != nil {
			return &halt{reason: "ForeignDatabase", message: fmt.Sprintf("%s: %s", db.Title, err), degraded: true}
		}
	}
	if err := r.removeMisplaced(ctx, p, db); err != nil {
		return err
	}
	r.finishRecovery(p, db)
	p.refindArchive(status)
	m := p.membership(db, reports)
	step := m.next()
	if err := r.take(ctx, p, db, step); err != nil {
		return err
	}
	// Nothing is lost where nothing serves.
	if step.action == actionNone && (p.upgrade.allows(db.Workload) || status.Leader == "" && !p.upgrade.held) {
		if err := r.replaceOutdated(ctx, p, db, reports); err != nil {
			return err
		}
	}
	if status.Leader == "" && m.quorumLost() && !status.Recovering() {
		return &halt{reason: "QuorumLost", degraded: true, message: m.describeLoss(db.Title)}
	}
	if err := r.convertSchema(ctx, p, db); err != nil {
		return err
	}
	if askErr != nil {
		why := fmt.Sprintf("a member of the %s is ready but does not answer on its admin endpoint, port %d", db.Title, db.AdminPort)
		if len(reports) == 0 || status.ClusterID == "" || status.Leader == "" {
			return &halt{reason: "WaitingForDatabase", retry: askErr, message: why}
		}
		// The others have a leader, and what comes next needs no more.
		log.FromContext(ctx).Error(askErr, "going on without a member")
		p.note(db.Workload, note{text: why})
		p.wakeAt(p.now.Add(askRetry))
	}
	if status.Recovering() && status.ClusterID == "" {
		return &halt{reason: "Recovering", message: fmt.Sprintf("the %s: %s", db.Title, step.message)}
	}
	if status.ClusterID == "" || status.Leader == "" {
		return &halt{reason: "WaitingForDatabase", message: fmt.Sprintf("the %s has no leader yet", db.Title)}
	}
	return nil
}

// askMembers asks every member that may answer, and returns their answers by node. To hear nothing of one that is not ready is no failure.
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
			p.wakeAt(p.now.Add(membershipDelay)) // it may come to say that it waits for us
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
	}
	return reports, errors.Join(failures...)
}

// record brings the status of a database up to date with what its members report. What a member that did not answer said before is
// kept, but for its role. The cluster ID, once recorded, never changes: a member of another cluster is an error.
func record(db *v1alpha1.DatabaseStatus, reports map[string]adminapi.Status) error {
	for i := range db.Members {
		db.Members[i].Role = ""
	}
	db.Leader = ""
	for _, node := range sortedNodes(reports) {
		report := reports[node]
		at := slices.IndexFunc(db.Members, func(m v1alpha1.DatabaseMember) bool { return m.Node == node })
		superseded := db.Since != nil && report.Since.Before(db.Since.Time) // it has not heard of the recovery yet
		if report.ClusterID == "" || at < 0 || superseded {
			continue
		}
		if db.ClusterID == "" {
			db.ClusterID = report.ClusterID
			if r := db.Recovery; r != nil && r.Phase == v1alpha1.RecoveryCreating {
				r.Phase = v1alpha1.RecoveryFilling
			}
		}
		if report.ClusterID != db.ClusterID {
			return fmt.Errorf("the member on node %s belongs to cluster %s and not to %s: move its data away for it to join",
				node, report.ClusterID, db.ClusterID)
		}
		address, err := memberAddress(report.Address)
		if err != nil {
			return err
		}
		recordMember(db, &db.Members[at], report, address)
	}
	return nil
}

// recordMember takes down what a member says. It has joined once it is connected.
func recordMember(db *v1alpha1.DatabaseStatus, member *v1alpha1.DatabaseMember, report adminapi.Status, address netip.Addr) {
	member.Role = report.Role
	if report.Connected || member.ServerID != "" {
		member.Address, member.ServerID = address.String(), report.ServerID
	}
	db.Term = max(db.Term, report.Term)
	if report.Role == adminapi.RoleLeader && report.Term == db.Term {
		db.Leader = member.Node
	}
}

func sortedNodes(reports map[string]adminapi.Status) []string {
	nodes := make([]string, 0, len(reports))
	for node := range reports {
		nodes = append(nodes, node)
	}
	slices.SortFunc(nodes, strings.Compare)
	return nodes
}

// removeMisplaced deletes pods on nodes that hold no member any more, and those that no node has and that were made for other nodes, for the
// StatefulSet to make them where one is missing.
func (r *Reconciler) removeMisplaced(ctx context.Context, p *pass, db render.Database) error {
	nodes := memberNodes(*p.database(db))
	set, isSet := p.live[db.Workload].(*appsv1.StatefulSet)
	observed := isSet && set.Status.ObservedGeneration >= set.Generation // otherwise it would make them for the same nodes
	for _, pod := range p.podsOf(db.Workload) {
		misplaced := !slices.Contains(nodes, pod.Spec.NodeName)
		if pod.Spec.NodeName == "" {
			may := allowedNodes(pod)
			misplaced = observed && len(may) > 0 && !sets.New(may...).Equal(sets.New(nodes...))
		}
		// Of a node that does not answer nobody ever hears that the pod has ended, and the StatefulSet makes none of its name before that. What
		// may still run there is no member.
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

// replaceOutdated deletes one member's pod that was made from an older template, for the StatefulSet to make it anew, when all others
// serve: never two at once, and the leader last. Others serve by their own word: kubelets of nodes that died say nothing, and a pod there is
// ready for a while.
func (r *Reconciler) replaceOutdated(ctx context.Context, p *pass, db render.Database, reports map[string]adminapi.Status) error {
	set, isSet := p.live[db.Workload].(*appsv1.StatefulSet)
	if !isSet || set.Status.ObservedGeneration < set.Generation || set.Status.UpdateRevision == "" {
		return nil
	}
	pods := p.podsOf(db.Workload)
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return strings.Compare(a.Labels[db.LeaderLabel]+a.Name, b.Labels[db.LeaderLabel]+b.Name)
	})
	members := make([]upgradePod, 0, len(pods))
	for _, pod := range pods {
		member := r.see(p, db.Workload, set.Spec.Template.Annotations[render.TemplateAnnotation], pod)
		member.ready = member.ready && reports[pod.Spec.NodeName].Connected
		members = append(members, member)
	}
	if i := nextMember(int(*set.Spec.Replicas), members); i >= 0 {
		pod := pods[i]
		if err := r.replace(ctx, pod); err != nil {
			return err
		}
		return &halt{reason: "UpdatingDatabase", message: fmt.Sprintf(
			"the member of the %s on node %s restarts with its new template", db.Title, pod.Spec.NodeName)}
	}
	return nil
}
