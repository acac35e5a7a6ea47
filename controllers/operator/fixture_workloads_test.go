// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/observed"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

// workloads acts as the workload controllers and the kubelets, and records the order in which pods are replaced.
type workloads struct {
	admin client.Client
	// fails are images whose pods end with an error.
	mu       sync.Mutex
	fails    map[string]bool
	held     string   // a component whose pods do not start
	replaced []string // component/node
	serial   int
}

// run acts until the test ends.
func (w *workloads) run(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		ticker := time.NewTicker(often)
		defer ticker.Stop()
		for ctx.Err() == nil {
			if err := w.turn(ctx); err != nil && ctx.Err() == nil && !transient(err) {
				done <- err
				return
			}
			<-ticker.C
		}
		done <- nil
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// transient reports whether the operator's concurrent writes cause the error.
func transient(err error) bool { return client.IgnoreNotFound(err) == nil || isConflict(err) }

func (w *workloads) history() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.replaced)
}

func (w *workloads) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.replaced = nil
}

func (w *workloads) fail(image string, fails bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fails[image] = fails
}

// hold prevents the pods of a component from starting, until it is called for another component or for none.
func (w *workloads) hold(component string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = component
}

func (w *workloads) turn(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := w.admin.List(ctx, &nodes); err != nil {
		return err
	}
	for _, name := range append(render.Components(), render.ImageName) {
		if err := w.work(ctx, name, nodes.Items); err != nil {
			return err
		}
	}
	return nil
}

func (w *workloads) work(ctx context.Context, name string, nodes []corev1.Node) error {
	var pods corev1.PodList
	if err := w.admin.List(ctx, &pods, client.MatchingLabels{v1alpha1.ComponentLabel: name}); err != nil {
		return err
	}
	var kept []corev1.Pod
	gone := false
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Status.Phase == corev1.PodFailed {
			continue // as ReplicaSets do
		}
		if pod.DeletionTimestamp.IsZero() {
			kept = append(kept, *pod)
			continue
		}
		if name != render.ImageName {
			w.mu.Lock()
			w.replaced = append(w.replaced, name+"/"+pod.Spec.NodeName) // recorded before others can see the deletion
			w.mu.Unlock()
		}
		if err := w.admin.Delete(ctx, pod, client.GracePeriodSeconds(0)); err != nil {
			return err
		}
		gone = true
	}
	if gone {
		return nil // the next turn creates their replacements
	}
	key := client.ObjectKey{Namespace: testNamespace, Name: name}
	switch name {
	case render.OpenVSwitch, render.AgentName, render.ImageName:
		return w.daemonSet(ctx, key, kept, nodes)
	case render.NorthboundName, render.SouthboundName:
		return w.statefulSet(ctx, key, kept)
	}
	return w.deployment(ctx, key, kept)
}

func (w *workloads) daemonSet(ctx context.Context, key client.ObjectKey, pods []corev1.Pod, nodes []corev1.Node) error {
	var set appsv1.DaemonSet
	err := w.admin.Get(ctx, key, &set)
	if apierrors.IsNotFound(err) && key.Name == render.ImageName {
		nodes = nil // it was pruned
	} else if err != nil {
		return err
	}
	rolls := set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n corev1.Node) bool { return !eligible(set.Spec.Template.Spec, n) })
	for i := range pods {
		old := pods[i].Annotations[render.TemplateAnnotation] != set.Spec.Template.Annotations[render.TemplateAnnotation]
		if rolls && old || !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == pods[i].Spec.NodeName }) {
			return w.admin.Delete(ctx, &pods[i])
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	for i := range nodes {
		if !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == nodes[i].Name }) {
			w.serial++
			pod, err := w.start(ctx, fmt.Sprintf("%s-%d", key.Name, w.serial), key.Name, nodes[i].Name, set.Spec.Template)
			if err != nil {
				return err
			}
			pods = append(pods, pod...)
		}
	}
	status := set.Status
	set.Status.ObservedGeneration, set.Status.DesiredNumberScheduled = set.Generation, int32(len(nodes))
	set.Status.UpdatedNumberScheduled, set.Status.NumberReady = count(pods, set.Spec.Template)
	if status.String() == set.Status.String() {
		return nil
	}
	return w.admin.Status().Update(ctx, &set)
}

// eligible reports whether a DaemonSet has a pod on a node.
func eligible(spec corev1.PodSpec, n corev1.Node) bool {
	if !labels.SelectorFromSet(spec.NodeSelector).Matches(labels.Set(n.Labels)) {
		return false
	}
	if spec.Affinity == nil {
		return true
	}
	terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return !slices.ContainsFunc(terms[0].MatchFields, func(f corev1.NodeSelectorRequirement) bool {
		return f.Operator == corev1.NodeSelectorOpNotIn && slices.Contains(f.Values, n.Name)
	})
}

func (w *workloads) statefulSet(ctx context.Context, key client.ObjectKey, pods []corev1.Pod) error {
	var set appsv1.StatefulSet
	if err := w.admin.Get(ctx, key, &set); err != nil {
		return err
	}
	if len(pods) == 0 {
		_, err := w.start(ctx, key.Name+"-0", key.Name, node, set.Spec.Template)
		return err
	}
	status := set.Status
	set.Status.ObservedGeneration, set.Status.Replicas, set.Status.UpdateRevision = set.Generation, int32(len(pods)), revisionOf(&set)
	set.Status.UpdatedReplicas, set.Status.ReadyReplicas = count(pods, set.Spec.Template)
	if status.String() == set.Status.String() {
		return nil
	}
	return w.admin.Status().Update(ctx, &set)
}

func (w *workloads) deployment(ctx context.Context, key client.ObjectKey, pods []corev1.Pod) error {
	var set appsv1.Deployment
	if err := w.admin.Get(ctx, key, &set); err != nil {
		return err
	}
	template := set.Spec.Template
	if len(pods) == 0 {
		w.serial++
		_, err := w.start(ctx, fmt.Sprintf("%s-%d", key.Name, w.serial), key.Name, node, template)
		return err
	}
	status := set.Status
	set.Status.ObservedGeneration, set.Status.Replicas = set.Generation, 1
	set.Status.UpdatedReplicas, set.Status.ReadyReplicas = count(pods, template)
	if !set.Spec.Paused && set.Status.UpdatedReplicas == 0 {
		return w.admin.Delete(ctx, &pods[0])
	}
	if status.String() == set.Status.String() {
		return nil
	}
	return w.admin.Status().Update(ctx, &set)
}

// count returns the numbers of pods with the current template and of ready pods.
func count(pods []corev1.Pod, template corev1.PodTemplateSpec) (updated, serving int32) {
	for i := range pods {
		if pods[i].Annotations[render.TemplateAnnotation] == template.Annotations[render.TemplateAnnotation] {
			updated++
		}
		if observed.Ready(&pods[i]) {
			serving++
		}
	}
	return updated, serving
}

// start creates a pod and, unless its image fails, makes it ready. It creates none of a component that is held.
func (w *workloads) start(ctx context.Context, name, component, on string, template corev1.PodTemplateSpec) ([]corev1.Pod, error) {
	w.mu.Lock()
	held, image := w.held == component, template.Spec.Containers[0].Image
	fails := w.fails[image]
	w.mu.Unlock()
	if held {
		return nil, nil
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: testNamespace, Labels: template.Labels, Annotations: template.Annotations},
		Spec:       corev1.PodSpec{NodeName: on, HostNetwork: true, Containers: []corev1.Container{{Name: component, Image: image}}},
	}
	if err := w.admin.Create(ctx, pod); err != nil {
		return nil, err
	}
	pod.Status = corev1.PodStatus{PodIP: "192.0.2.1", PodIPs: []corev1.PodIP{{IP: "192.0.2.1"}}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: component, Image: image, ImageID: image, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}
	if fails {
		ready.Status = corev1.ConditionFalse
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: component, Image: image,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no such image"}},
		}}
	}
	pod.Status.Conditions = []corev1.PodCondition{ready}
	if err := w.admin.Status().Update(ctx, pod); err != nil {
		return nil, err
	}
	return []corev1.Pod{*pod}, nil
}
