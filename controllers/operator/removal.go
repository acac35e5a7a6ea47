// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/database"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/rollout"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/workload"
)

// Finalizer keeps the OVNCluster until the nodes are clean.
const Finalizer = "kubeovn.io/kiln-operator"

const (
	// cleaningTime is the time that nodes have to become clean. An event then names the remaining nodes, and the removal
	// continues.
	cleaningTime = 5 * time.Minute
	// endingTime is the time after the end of its grace period for which a pod may still exist. Then its node counts as
	// not answering.
	endingTime = time.Minute
)

// reasonRemoving is the reason of the conditions while the OVNCluster is removed.
const reasonRemoving = "Removing"

// removalPhases in their order: first the pods that the agents take down and the announcements of routes, then the components that change the network, then the components that carry its traffic,
// then the state on the nodes. Changes of pods wake a phase that waits, and every wait has a limit.
var removalPhases = []struct {
	name string
	run  func(removal, context.Context) error
}{
	{"permit the deletion of networks", removal.permitRemoval},
	{"stop the pods on the pod network, and the speaker", stopping(render.StopPods)},
	{"stop the controller and the agents", stopping(render.StopWriters)},
	{"stop northd and Open vSwitch", stopping(render.StopDaemons)},
	{"stop the databases", stopping(render.StopDatabases)},
	{"clean the nodes", removal.cleanNodes},
	{"release the network resources", removal.releaseResources},
	{"delete the authorities", removal.deleteAuthorities},
	{"let go", removal.finishRemoval},
}

// removal is a pass of an OVNCluster that is being deleted.
type removal struct {
	*Reconciler
	*pass
}

// takeDown runs a pass of an OVNCluster that is being deleted. The garbage collector deletes its owned objects other than
// workloads.
func (r removal) takeDown(ctx context.Context) error {
	r.config = render.Config{Namespace: r.Namespace, Image: r.cluster.Spec.Image, Spec: r.cluster.Spec}
	r.config.PreviousDataDirectory = database.OtherDirectory(r.cluster.Status.DataDirectories, r.cluster.Spec.Central.DataDirectory)
	if r.config.Image == "" {
		r.config.Image = r.Image
	}
	for _, phase := range removalPhases {
		if err := phase.run(r, ctx); err != nil {
			return fmt.Errorf("%s: %w", phase.name, err)
		}
	}
	return nil
}

// hold adds the finalizer, so that the OVNCluster stays until its nodes are clean, and stops a clean-up that still runs.
func (r *Reconciler) hold(ctx context.Context, p *pass) error {
	end := removal{r, p}
	if controllerutil.AddFinalizer(p.cluster, Finalizer) {
		if err := end.patchFinalizers(ctx); err != nil {
			return err
		}
	}
	return end.stop(ctx, render.CleanUpName)
}

// patchFinalizers writes the finalizers of r.cluster. It fails with a conflict if another writer has changed the object,
// because a merge patch replaces the whole list.
func (r removal) patchFinalizers(ctx context.Context) error {
	changed := r.before.DeepCopy()
	changed.Finalizers = r.cluster.Finalizers
	patch := client.MergeFromWithOptions(r.before, client.MergeFromWithOptimisticLock{})
	if err := r.Patch(ctx, changed, patch, fieldOwner); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("patch finalizers of OVNCluster %s: %w", changed.Name, err))
	}
	r.before.ResourceVersion, r.cluster.ResourceVersion = changed.ResourceVersion, changed.ResourceVersion
	r.before.Finalizers = changed.Finalizers
	return nil
}

// permitRemoval deletes the policy that guards the default networks and the resource definitions. It is the first phase, because an API server applies a
// policy for up to a second after its deletion: the user deletes the definitions as soon as the OVNCluster is deleted.
func (r removal) permitRemoval(ctx context.Context) error {
	named := metav1.ObjectMeta{Name: render.RemovalPolicy}
	for _, o := range []client.Object{&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: named}, &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: named}} {
		err := r.Delete(ctx, o)
		if meta.IsNoMatchError(err) || apierrors.IsForbidden(err) { // not served, or a role without the right: the policy does not exist
			return nil
		}
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete policy %s: %w", render.RemovalPolicy, err)
		}
	}
	return nil
}

// stopping returns the phase that stops the operands of a step.
func stopping(step render.RemovalStep) func(removal, context.Context) error {
	names := render.Select(func(o render.Operand) bool { return o.Removal == step })
	return func(r removal, ctx context.Context) error { return r.stop(ctx, names...) }
}

// stop deletes workloads and waits until none of their pods runs on a node that answers.
func (r removal) stop(ctx context.Context, names ...string) error {
	var waiting []string
	for _, name := range names {
		live, err := observed.Workload(ctx, r.objects, r.Namespace, name)
		if err != nil {
			return err
		}
		if live != nil {
			waiting = append(waiting, name)
			if err := r.objects.Delete(ctx, live); err != nil {
				return err
			}
			continue // its pods only after it is deleted: it would re-create them
		}
		for _, pod := range r.PodsOf(name) {
			runs, err := r.end(ctx, pod)
			if err != nil {
				return err
			}
			if runs {
				waiting = append(waiting, pod.Name)
			}
		}
	}
	if len(waiting) > 0 {
		return &status.Halt{Reason: reasonRemoving, Message: "waiting for the end of " + strings.Join(rollout.Few(waiting), ", ")}
	}
	return nil
}

// end deletes a pod whose workload is deleted, without waiting for the garbage collector, and reports whether it may
// still run.
func (r removal) end(ctx context.Context, pod *corev1.Pod) (bool, error) {
	node := r.Node(pod.Spec.NodeName)
	if node == nil || observed.Silent(node) || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false, nil
	}
	if pod.DeletionTimestamp.IsZero() {
		return true, r.objects.Delete(ctx, pod)
	}
	until := pod.DeletionTimestamp.Add(endingTime)
	if r.pass.Now.Before(until) {
		r.WakeAt(until)
		return true, nil
	}
	return false, nil
}

// cleanNodes waits until every node is clean, for cleaningTime at most. An event then names the nodes that are not clean.
func (r removal) cleanNodes(ctx context.Context) error {
	// Without an owner, because a deletion with foreground propagation would delete it immediately.
	if err := r.objects.ApplyUnowned(ctx, render.CleanUp(r.config)); err != nil {
		return err
	}
	deadline := r.objects.Live(render.CleanUpName).GetCreationTimestamp().Add(cleaningTime)
	uncleaned := r.uncleanedNodes()
	if len(uncleaned) == 0 {
		return nil
	}
	list := strings.Join(rollout.Few(uncleaned), "; ")
	if r.pass.Now.Before(deadline) {
		r.WakeAt(deadline)
		return &status.Halt{Reason: reasonRemoving, Message: fmt.Sprintf("%d of %d nodes are clean; waiting until %s for %s",
			len(r.Nodes)-len(uncleaned), len(r.Nodes), deadline.UTC().Format(time.RFC3339), list)}
	}
	note := "these nodes were not cleaned; restart them, or clean them by hand (docs/operations/install.md): " + list
	r.Recorder.Eventf(r.cluster, nil, corev1.EventTypeWarning, "NodesNotCleaned", "Remove", "%s", status.EventNote(note))
	return nil
}

// uncleanedNodes returns the nodes without a ready clean-up pod, with the known reasons. A pod of an older template does not
// count: it may have left state that must now be removed.
func (r removal) uncleanedNodes() []string {
	template := workload.Template(r.objects.Live(render.CleanUpName)).Annotations[render.TemplateAnnotation]
	why := map[string]string{}
	for i := range r.Nodes {
		why[r.Nodes[i].Name] = "no clean-up pod yet"
		if observed.Silent(&r.Nodes[i]) {
			why[r.Nodes[i].Name] = "it does not answer"
		}
	}
	for _, pod := range r.PodsOf(render.CleanUpName) {
		node := pod.Spec.NodeName
		switch {
		case why[node] == "": // the node is deleted, or already clean
		case observed.Ready(pod) && pod.Annotations[render.TemplateAnnotation] == template:
			delete(why, node)
		case !observed.Silent(r.Node(node)):
			why[node] = "cleaning"
			if t := observed.Trouble(pod, "", r.pass.Now); t != "" {
				why[node] = strings.TrimPrefix(t, "node "+node+": ")
			}
		}
	}
	dirty := make([]string, 0, len(why))
	for node, reason := range why {
		dirty = append(dirty, node+": "+reason)
	}
	slices.Sort(dirty)
	return dirty
}

// releaseResources removes the controller's finalizer from the network resources. No controller is left to remove it, so
// deletions by the user complete immediately. A controller that starts again finds deleted resources by their database
// rows without an object.
func (r removal) releaseResources(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	for _, kind := range kubeovnv1.Kinds {
		if slices.Contains(kind.ControllerWrites, "patch") {
			all.Go(func() error { return r.release(ctx, kind) }) // the first list of a kind takes the API server a second
		}
	}
	return all.Wait()
}

// release removes the controller's finalizer from the objects of one kind, if the API serves it.
func (r removal) release(ctx context.Context, kind *kubeovnv1.Kind) error {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(kubeovnv1.GroupVersion.WithKind(kind.Kind + "List"))
	if err := r.APIReader.List(ctx, &list); err != nil && !meta.IsNoMatchError(err) {
		return fmt.Errorf("list %s: %w", kind.Resource, err)
	}
	for i := range list.Items {
		list.Items[i].SetGroupVersionKind(kubeovnv1.GroupVersion.WithKind(kind.Kind))
		if err := k8s.RemoveFinalizer(ctx, r.Client, &list.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// deleteAuthorities deletes the CAs if the databases' data is deleted too. Retained databases need them: they trust no
// other CA.
func (r removal) deleteAuthorities(ctx context.Context) error {
	if r.cluster.Spec.DeletionPolicy != v1alpha1.DeletionDelete {
		return nil
	}
	if err := r.certificates.deleteOrders(ctx, r.pass); err != nil {
		return err
	}
	for _, name := range certs.Authorities {
		for _, prefix := range []string{certs.IssuedPrefix, certs.SecretPrefix} {
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: prefix + name}}
			if err := r.Delete(ctx, secret); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("delete authority %s: %w", name, err)
			}
		}
	}
	return nil
}

// finishRemoval deletes the clean-up DaemonSet and removes the finalizer.
func (r removal) finishRemoval(ctx context.Context) error {
	cleanUp := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: render.CleanUpName}}
	err := r.Delete(ctx, cleanUp, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("end the clean-up of nodes: %w", err)
	}
	controllerutil.RemoveFinalizer(r.cluster, Finalizer)
	return r.patchFinalizers(ctx)
}
