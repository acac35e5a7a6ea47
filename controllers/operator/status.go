// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
)

// component is the state of one workload.
type component struct {
	row v1alpha1.ComponentStatus
	// serves is set if at least one pod is ready, and serving if all pods on nodes that answer are ready. complete is set if, in
	// addition, these are updated and nothing is pending, such as a requested backup.
	serves, serving, complete bool
	// aside is set if the network does not need the component.
	aside bool
	// troubles are problems that need a person.
	troubles []string
}

// components returns the components of this installation in the order of their start.
func (p *pass) components() []string {
	return render.Select(func(o render.Operand) bool {
		return !o.Hidden && (o.Runs == nil || o.Runs(&p.cluster.Spec) && !slices.Contains(p.stopped, o.Name))
	})
}

// report computes the status at the end of a pass, writes it if it changed, and creates events for changed conditions.
func (r *Reconciler) report(ctx context.Context, p *pass, passErr error) error {
	summary := summary{generation: p.cluster.Generation}
	summary.halt, summary.err = divide(passErr)
	summary.wasAvailable = meta.IsStatusConditionTrue(p.before.Status.Conditions, v1alpha1.ConditionAvailable)
	status := &p.cluster.Status
	status.ObservedGeneration = p.cluster.Generation
	r.versions.forget(p.pods)
	r.reportNodeTroubles(p)
	status.Components = nil
	for _, name := range p.components() {
		c, err := r.component(ctx, p, name)
		if err != nil {
			return err
		}
		summary.components = append(summary.components, c)
		status.Components = append(status.Components, c.row)
	}
	status.Versions = summarize(status.Components)
	summary.upgrade, summary.issuer, summary.nodes, summary.protection = p.upgrade, p.issuer, p.nodeTroubles, p.protection
	summary.oldKubernetes = p.oldKubernetes
	summary.advice = p.advice
	p.upgradeStatus(summary.complete())
	if p.planned {
		measure(p.upgrade, status.Components)
	}
	for _, c := range summary.conditions() {
		meta.SetStatusCondition(&status.Conditions, c)
	}
	p.reportSpeaker()
	measureConditions(status.Conditions)
	status.Message = message(status.Conditions)
	if equality.Semantic.DeepEqual(p.before.Status, p.cluster.Status) {
		return nil
	}
	// The optimistic lock prevents a stale pass from overwriting a newer record of the databases.
	patch := client.MergeFromWithOptions(p.before, client.MergeFromWithOptimisticLock{})
	if err := r.Status().Patch(ctx, p.cluster, patch, fieldOwner); err != nil {
		return fmt.Errorf("patch status of OVNCluster %s: %w", p.cluster.Name, err)
	}
	r.tell(p)
	return nil
}

// component returns the state of a workload as applied in this pass, or from the cache if the pass ended before.
func (r *Reconciler) component(ctx context.Context, p *pass, name string) (component, error) {
	workload, err := r.workload(ctx, p, name)
	if err != nil {
		return component{}, err
	}
	if workload == nil {
		message := "not started: it waits for an earlier component"
		if p.removing() {
			message = "removed"
		}
		return component{row: v1alpha1.ComponentStatus{Name: name, Message: message}, aside: render.OperandOf(name).Runs != nil}, nil
	}
	progress := progressOf(workload)
	if _, is := workload.(*appsv1.Deployment); !is {
		progress.updated = max(progress.updated, updatedPods(workload, p.podsOf(name)))
	}
	c := component{
		row: v1alpha1.ComponentStatus{
			Name: name, Desired: progress.desired, Ready: progress.ready, Updated: progress.updated, Image: progress.image,
		},
		serves: progress.serves(), aside: render.OperandOf(name).Runs != nil,
	}
	c.row.Versions = r.versionsOf(p, name)
	unreachable := int32(0)
	for _, pod := range p.podsOf(name) {
		if silent(p.node(madeFor(pod))) {
			unreachable++
		}
		if why := p.trouble(name, pod); why != "" {
			c.troubles = append(c.troubles, why)
		}
	}
	if claim := p.cluster.Spec.Central.Backup.PersistentVolumeClaim; name == render.BackupsName && claim != nil && len(c.troubles) > 0 {
		c.troubles = append(c.troubles, fmt.Sprintf("repair the claim %s/%s, or set another one in spec.central.backup.persistentVolumeClaim; members "+
			"go on with backups on their nodes", r.Namespace, claim.ClaimName))
	}
	if name == render.AgentName {
		c.troubles = append(c.troubles, p.kubeProxyConflicts()...)
	}
	c.serving, c.complete = progress.serving(unreachable), progress.complete(unreachable)
	leaderless := (name == render.NorthboundName && p.cluster.Status.Northbound.Leader == "") ||
		(name == render.SouthboundName && p.cluster.Status.Southbound.Leader == "")
	if leaderless {
		c.serves, c.serving, c.complete = false, false, false
	}
	c.row.Message = c.message(progress, unreachable, leaderless)
	for _, n := range p.notes[name] {
		c.complete, c.serving = false, c.serving && n.aside
		c.row.Message = strings.TrimPrefix(c.row.Message+"; "+n.text, "; ")
		if n.stuck {
			c.troubles = append(c.troubles, n.text)
		}
	}
	return c, nil
}

func (r *Reconciler) workload(ctx context.Context, p *pass, name string) (client.Object, error) {
	if live := p.live[name]; live != nil {
		return live, nil
	}
	return r.cached(ctx, objectKey{
		appsv1.SchemeGroupVersion.WithKind(render.OperandOf(name).Kind), types.NamespacedName{Namespace: r.Namespace, Name: name},
	})
}

// trouble returns the problem of a pod. A node that does not answer is not a problem of Kiln, unless it holds a
// database's data.
func (p *pass) trouble(name string, pod *corev1.Pod) string {
	if n := p.node(madeFor(pod)); silent(n) {
		if render.OperandOf(name).Database {
			return fmt.Sprintf("node %s, which holds the database, does not answer: start it", n.Name)
		}
		return ""
	}
	why := trouble(pod, p.waiting[pod.Name], p.now)
	if until := unreadyUntil(pod); why == "" && !ready(pod) && pod.DeletionTimestamp.IsZero() && p.now.Before(until) {
		p.wakeAt(until)
	}
	return why
}

func (c component) message(r progress, unreachable int32, leaderless bool) string {
	var parts []string
	if r.ready < r.desired || r.desired == 0 {
		parts = append(parts, fmt.Sprintf("%d of %d ready", r.ready, r.desired))
	}
	if r.observed && r.updated < r.desired {
		parts = append(parts, fmt.Sprintf("%d of %d updated", r.updated, r.desired))
	}
	if unreachable > 0 {
		parts = append(parts, fmt.Sprintf("%d on nodes that do not answer", unreachable))
	}
	if leaderless && r.ready > 0 {
		parts = append(parts, "no leader")
	}
	return strings.Join(append(parts, rollout.Few(c.troubles)...), "; ")
}

// tell creates an event for each condition whose status or reason changed.
func (r *Reconciler) tell(p *pass) {
	for _, c := range p.cluster.Status.Conditions {
		before := meta.FindStatusCondition(p.before.Status.Conditions, c.Type)
		if before != nil && before.Status == c.Status && before.Reason == c.Reason {
			continue
		}
		kind := corev1.EventTypeNormal
		failed := c.Type == v1alpha1.ConditionDegraded && c.Status == metav1.ConditionTrue
		lost := c.Type == v1alpha1.ConditionAvailable && c.Status == metav1.ConditionFalse && before != nil
		exposed := c.Type == v1alpha1.ConditionProtected && c.Status == metav1.ConditionFalse
		unannounced := c.Type == v1alpha1.ConditionPeersEstablished && c.Status == metav1.ConditionFalse
		if failed || lost || exposed || unannounced {
			kind = corev1.EventTypeWarning
		}
		note := fmt.Sprintf("%s is %s: %s", c.Type, c.Status, c.Message)
		r.Recorder.Eventf(p.cluster, nil, kind, c.Reason, "Reconcile", "%s", cut(note, maxNote))
	}
}

// maxNote is the maximum length of an event's note (events.k8s.io/v1), less the ellipsis of cut.
const maxNote = 1000
