// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package status

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
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
	"github.com/kiln-net/kiln/internal/workload"
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

// Writer writes the status of the OVNCluster at the end of a pass.
type Writer struct {
	Client   client.Client
	Recorder events.EventRecorder
	// Namespace of the operands.
	Namespace string
	// FieldOwner is the field manager of the status.
	FieldOwner client.FieldOwner
	Versions   *Versions
}

// Pass is the result of a pass.
type Pass struct {
	// Before is the OVNCluster as the pass read it. Phases have changed the status of the copy in OVNCluster.
	Before, OVNCluster *v1alpha1.OVNCluster
	Report             *Report
	Objects            *workload.Set
	// Planned is set if the pass has planned replacements of pods by Image. Otherwise the status of the upgrade stays.
	Planned bool
	Plan    rollout.Plan
	Image   string
	// Err ended the pass before its last phase.
	Err error
}

// removing reports whether the OVNCluster is being deleted.
func (p Pass) removing() bool { return !p.OVNCluster.DeletionTimestamp.IsZero() }

// components returns the components of this installation in the order of their start.
func (p Pass) components() []string {
	return render.Select(func(o render.Operand) bool {
		return !o.Hidden && (o.Runs == nil || o.Runs(&p.OVNCluster.Spec))
	})
}

// Write computes the status, writes it if it changed, and creates events for changed conditions.
func (w *Writer) Write(ctx context.Context, p Pass) error {
	summary := summary{
		generation: p.OVNCluster.Generation, wasAvailable: meta.IsStatusConditionTrue(p.Before.Status.Conditions, v1alpha1.ConditionAvailable),
		upgrade: p.Plan, nodes: p.Report.NodeTroubles, protection: p.Report.Protection, oldKubernetes: p.Report.OldKubernetes,
		advice: p.Report.Advice(), issuer: p.Report.Issuer,
	}
	summary.halt, summary.err = divide(p.Err)
	status := &p.OVNCluster.Status
	status.ObservedGeneration = p.OVNCluster.Generation
	w.Versions.Forget(p.Report.Pods)
	status.Components = nil
	for _, name := range p.components() {
		c, err := w.component(ctx, p, name)
		if err != nil {
			return err
		}
		summary.components = append(summary.components, c)
		status.Components = append(status.Components, c.row)
	}
	status.Versions = summarize(status.Components)
	if p.Planned {
		p.writeUpgrade(summary.complete())
		measure(p.Plan, status.Components)
	}
	for _, c := range summary.conditions() {
		meta.SetStatusCondition(&status.Conditions, c)
	}
	reportSpeaker(p.OVNCluster, p.Report.Cluster)
	measureConditions(status.Conditions)
	status.Message = message(status.Conditions)
	if equality.Semantic.DeepEqual(p.Before.Status, p.OVNCluster.Status) {
		return nil
	}
	// The optimistic lock prevents a stale pass from overwriting a newer record of the databases.
	patch := client.MergeFromWithOptions(p.Before, client.MergeFromWithOptimisticLock{})
	if err := w.Client.Status().Patch(ctx, p.OVNCluster, patch, w.FieldOwner); err != nil {
		return fmt.Errorf("patch status of OVNCluster %s: %w", p.OVNCluster.Name, err)
	}
	w.recordConditions(p)
	return nil
}

// writeUpgrade writes the plan to the status.
func (p Pass) writeUpgrade(complete bool) {
	status := &p.OVNCluster.Status.Upgrade
	status.Stage, status.Direction, status.Message = p.Plan.Stage, p.Plan.Direction(), p.Plan.Message
	if complete && p.Plan.Stage == "" {
		status.Images = rollout.SettleImages(status.Images, p.Image)
	}
}

// component returns the state of a workload as applied in this pass, or from the cache if the pass ended before.
func (w *Writer) component(ctx context.Context, p Pass, name string) (component, error) {
	live, err := observed.Workload(ctx, p.Objects, w.Namespace, name)
	if err != nil {
		return component{}, err
	}
	if live == nil {
		message := "not started: it waits for an earlier component"
		if p.removing() {
			message = "removed"
		}
		return component{row: v1alpha1.ComponentStatus{Name: name, Message: message}, aside: render.OperandOf(name).Runs != nil}, nil
	}
	progress := workload.ProgressOf(live)
	if _, is := live.(*appsv1.Deployment); !is {
		progress.Updated = max(progress.Updated, updatedPods(live, p.Report.PodsOf(name)))
	}
	c := component{
		row: v1alpha1.ComponentStatus{
			Name: name, Desired: progress.Desired, Ready: progress.Ready, Updated: progress.Updated, Image: progress.Image,
		},
		serves: progress.Serves(), aside: render.OperandOf(name).Runs != nil,
	}
	c.row.Versions = w.versionsOf(p, name)
	unreachable := int32(0)
	for _, pod := range p.Report.PodsOf(name) {
		if observed.Silent(p.Report.Node(observed.MadeFor(pod))) {
			unreachable++
		}
		if why := p.Report.Trouble(name, pod); why != "" {
			c.troubles = append(c.troubles, why)
		}
	}
	if claim := p.OVNCluster.Spec.Central.Backup.PersistentVolumeClaim; name == render.BackupsName && claim != nil && len(c.troubles) > 0 {
		c.troubles = append(c.troubles, fmt.Sprintf("repair the claim %s/%s, or set another one in spec.central.backup.persistentVolumeClaim; members "+
			"go on with backups on their nodes", w.Namespace, claim.ClaimName))
	}
	if name == render.AgentName {
		c.troubles = append(c.troubles, kubeProxyConflicts(p.OVNCluster, p.Report.Nodes)...)
	}
	c.serving, c.complete = progress.Serving(unreachable), progress.Complete(unreachable)
	leaderless := slices.ContainsFunc(render.Databases, func(db render.Database) bool {
		return db.Workload == name && db.Of(&p.OVNCluster.Status).Leader == ""
	})
	if leaderless {
		c.serves, c.serving, c.complete = false, false, false
	}
	c.row.Message = c.message(progress, unreachable, leaderless)
	for _, n := range p.Report.notes[name] {
		c.complete, c.serving = false, c.serving && n.Aside
		c.row.Message = strings.TrimPrefix(c.row.Message+"; "+n.Text, "; ")
		if n.Stuck {
			c.troubles = append(c.troubles, n.Text)
		}
	}
	return c, nil
}

// updatedPods counts the pods with the current template stamp. A workload's own count uses the whole template, which
// includes the affinity: changes of members and held nodes alter it without a need to replace pods.
func updatedPods(live client.Object, pods []*corev1.Pod) (count int32) {
	for _, pod := range pods {
		if pod.Annotations[render.TemplateAnnotation] == workload.Template(live).Annotations[render.TemplateAnnotation] {
			count++
		}
	}
	return count
}

func (c component) message(r workload.Progress, unreachable int32, leaderless bool) string {
	var parts []string
	if r.Ready < r.Desired || r.Desired == 0 {
		parts = append(parts, fmt.Sprintf("%d of %d ready", r.Ready, r.Desired))
	}
	if r.Observed && r.Updated < r.Desired {
		parts = append(parts, fmt.Sprintf("%d of %d updated", r.Updated, r.Desired))
	}
	if unreachable > 0 {
		parts = append(parts, fmt.Sprintf("%d on nodes that do not answer", unreachable))
	}
	if leaderless && r.Ready > 0 {
		parts = append(parts, "no leader")
	}
	return strings.Join(append(parts, rollout.Few(c.troubles)...), "; ")
}

// recordConditions creates an event for each condition whose status or reason changed.
func (w *Writer) recordConditions(p Pass) {
	for _, c := range p.OVNCluster.Status.Conditions {
		before := meta.FindStatusCondition(p.Before.Status.Conditions, c.Type)
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
		w.Recorder.Eventf(p.OVNCluster, nil, kind, c.Reason, "Reconcile", "%s", EventNote(note))
	}
}

// maxNote is the maximum length of an event's note (events.k8s.io/v1), less the ellipsis of observed.Cut.
const maxNote = 1000

// EventNote limits a text to the length that the API server accepts for an event.
func EventNote(text string) string { return observed.Cut(text, maxNote) }
