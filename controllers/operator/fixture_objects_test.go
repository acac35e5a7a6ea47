// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"maps"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
)

// addNode creates a node with a kubelet that answers and without a network. It runs Linux, unless the labels differ.
func (w *world) addNode(t *testing.T, name, address string, labels map[string]string) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
	maps.Copy(n.Labels, labels)
	if err := w.admin.Create(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady"}}
	if err := w.admin.Status().Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
}

// addPod creates a pod of a workload that is not ready.
func (w *world) addPod(t *testing.T, name, component, node, address, revision string) *corev1.Pod {
	t.Helper()
	pod := w.newPod(name, component, node, revision)
	if err := w.admin.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	pod.Status.PodIP, pod.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
	if err := w.admin.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	return pod
}

func (w *world) newPod(name, component, node, revision string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: testNamespace, Labels: map[string]string{
			v1alpha1.PartOfLabel: v1alpha1.PartOf, v1alpha1.ComponentLabel: component, appsv1.ControllerRevisionHashLabelKey: revision,
		}, Annotations: map[string]string{render.TemplateAnnotation: revision}},
		Spec: corev1.PodSpec{NodeName: node, HostNetwork: true, Containers: []corev1.Container{{Name: component, Image: "kiln.local/kiln:test"}}},
	}
}

func (w *world) setReady(t *testing.T, pod *corev1.Pod, ready bool) {
	t.Helper()
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now()}}
	pod.Status.ContainerStatuses = nil
	if err := w.admin.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

// settle acts as the workload controllers: it reports the current template as rolled out on count pods.
func (w *world) settle(t *testing.T, o client.Object, count int32) {
	t.Helper()
	g := newG(t)
	g.Expect(w.admin.Get(t.Context(), client.ObjectKeyFromObject(o), o)).To(Succeed())
	before := o.DeepCopyObject().(client.Object)
	switch s := o.(type) {
	case *appsv1.StatefulSet:
		s.Status = appsv1.StatefulSetStatus{
			ObservedGeneration: s.Generation, Replicas: count, ReadyReplicas: count, UpdatedReplicas: count, UpdateRevision: revisionOf(s),
		}
	case *appsv1.Deployment:
		s.Status = appsv1.DeploymentStatus{ObservedGeneration: s.Generation, Replicas: count, ReadyReplicas: count, UpdatedReplicas: count}
	case *appsv1.DaemonSet:
		s.Status = appsv1.DaemonSetStatus{
			ObservedGeneration: s.Generation, DesiredNumberScheduled: count, NumberReady: count, UpdatedNumberScheduled: count,
		}
	}
	g.Expect(w.admin.Status().Patch(t.Context(), o, client.MergeFrom(before))).To(Succeed()) // a patch: the operator may write it too
}

func revisionOf(s *appsv1.StatefulSet) string {
	return s.Spec.Template.Annotations[render.TemplateAnnotation]
}

func (w *world) cluster(t *testing.T) *v1alpha1.OVNCluster {
	t.Helper()
	var c v1alpha1.OVNCluster
	if err := w.admin.Get(t.Context(), client.ObjectKey{Name: v1alpha1.OVNClusterName}, &c); err != nil {
		t.Fatal(err)
	}
	return &c
}

func (s *scenario) exists(t *testing.T, o client.Object, name string) func() error {
	return func() error {
		return s.admin.Get(t.Context(), client.ObjectKey{Namespace: testNamespace, Name: name}, o)
	}
}

// absent returns a getter for Eventually, which is true when an object does not exist.
func (s *scenario) absent(t *testing.T, o client.Object, name string) func() bool {
	return func() bool { return apierrors.IsNotFound(s.exists(t, o, name)()) }
}

func (s *scenario) named(o client.Object, name string) client.Object {
	o.SetNamespace(testNamespace)
	o.SetName(name)
	return o
}

func (s *scenario) changeSpec(t *testing.T, change func(*v1alpha1.OVNClusterSpec)) {
	t.Helper()
	c := s.cluster(t)
	changed := c.DeepCopy()
	change(&changed.Spec)
	if err := s.admin.Patch(t.Context(), changed, client.MergeFrom(c)); err != nil {
		t.Fatal(err)
	}
}

// requests returns a request of CPU; a change of it replaces the pods of a component.
func requests(cpu string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}
}

// setNode changes a node and its status.
func (s *scenario) setNode(t *testing.T, name string, change func(*corev1.Node)) {
	t.Helper()
	n := &corev1.Node{}
	if err := s.admin.Get(t.Context(), client.ObjectKey{Name: name}, n); err != nil {
		t.Fatal(err)
	}
	before := n.DeepCopy()
	change(n)
	changed := n.DeepCopy()
	if err := s.admin.Patch(t.Context(), n, client.StrategicMergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	if err := s.admin.Status().Patch(t.Context(), changed, client.StrategicMergeFrom(before)); err != nil {
		t.Fatal(err)
	}
}

func isConflict(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
