// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/workload"
)

// Field managers besides the operator: `kubectl set`, and a server-side apply of some fields of a workload.
const (
	kubectlSet = client.FieldOwner("kubectl-set")
	tuning     = client.FieldOwner("tuning")
)

// tune applies some fields of a workload's pods. The API server takes the field manager for an owner of each entry that it names.
func tune(t *testing.T, o client.Object, pods map[string]any) {
	t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": pods}}}}
	kind, err := theWorld.admin.GroupVersionKindFor(o)
	if err != nil {
		t.Fatal(err)
	}
	u.SetGroupVersionKind(kind)
	u.SetNamespace(o.GetNamespace())
	u.SetName(o.GetName())
	if err := theWorld.admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(u), tuning, client.ForceOwnership); err != nil {
		t.Fatal(err)
	}
}

// renamed returns a workload of each kind whose containers and volume have this name, besides a container that stays.
func renamed(kind, name string) render.Object {
	labels := map[string]string{"app": "renamed-" + strings.ToLower(kind)}
	meta := metav1.ObjectMeta{Name: labels["app"], Namespace: testNamespace}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
		Containers:     []corev1.Container{{Name: "stays", Image: "i:" + name}, {Name: name, Image: "i:1"}},
		InitContainers: []corev1.Container{{Name: name + "-first", Image: "i:1"}},
		Volumes:        []corev1.Volume{{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
	}}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	switch kind {
	case "Deployment":
		return &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}}
	case "StatefulSet":
		return &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: selector, Template: template}}
	}
	return &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}}
}

// ownFields makes others owners of fields of the old containers and volume and of the container that stays, and adds a container.
func ownFields(t *testing.T, o client.Object, old string) {
	t.Helper()
	limits := map[string]any{"limits": map[string]any{"memory": "3Gi"}}
	tune(t, o, map[string]any{
		"containers":     []any{map[string]any{"name": old, "resources": limits}, map[string]any{"name": "stays", "resources": limits}},
		"initContainers": []any{map[string]any{"name": old + "-first", "resources": limits}},
		"volumes":        []any{map[string]any{"name": old, "emptyDir": map[string]any{"medium": "Memory"}}},
	})
	if err := theWorld.admin.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		t.Fatal(err)
	}
	before := o.DeepCopyObject().(client.Object)
	spec := &workload.Template(o).Spec
	for i := range spec.Containers {
		spec.Containers[i].Env = []corev1.EnvVar{{Name: "MINE", Value: "1"}}
		spec.Containers[i].Resources.Limits[corev1.ResourceCPU] = resource.MustParse("2")
	}
	spec.InitContainers[0].Env = []corev1.EnvVar{{Name: "MINE", Value: "1"}}
	for i := range spec.Volumes {
		if spec.Volumes[i].Name == old {
			spec.Volumes[i].EmptyDir.SizeLimit = new(resource.MustParse("1Gi"))
		}
	}
	spec.Containers = append(spec.Containers, corev1.Container{Name: "sidecar", Image: "s:1"})
	if err := theWorld.admin.Patch(t.Context(), o, client.StrategicMergeFrom(before), kubectlSet); err != nil {
		t.Fatal(err)
	}
}

func TestRenamedContainersLeaveNothingBehind(t *testing.T) {
	for _, kind := range []string{"Deployment", "StatefulSet", "DaemonSet"} {
		t.Run(kind, func(t *testing.T) {
			g := newG(t)
			applier := &workload.Applier{Client: theWorld.admin, APIReader: theWorld.admin, Cache: theWorld.admin, FieldOwner: fieldOwner}
			apply := func(o render.Object) client.Object {
				t.Helper()
				objects := applier.For(&v1alpha1.OVNCluster{}, v1alpha1.GroupVersion.WithKind("OVNCluster"))
				g.Expect(objects.ApplyUnowned(t.Context(), o)).To(Succeed())
				return objects.Live(o.GetName())
			}
			live := apply(renamed(kind, "old"))
			t.Cleanup(func() { g.Expect(theWorld.admin.Delete(context.Background(), live)).To(Succeed()) })
			ownFields(t, live, "old")
			generation := live.GetGeneration()

			live = apply(renamed(kind, "new"))
			g.Expect(live.GetGeneration()).To(Equal(generation+1), "one new template")
			spec := workload.Template(live).Spec
			names := map[string]corev1.Container{}
			for _, c := range spec.Containers {
				names[c.Name] = c
			}
			g.Expect(names).To(HaveLen(3))
			g.Expect(names).To(SatisfyAll(HaveKey("stays"), HaveKey("new"), HaveKey("sidecar")))
			g.Expect(names["stays"].Env).To(Equal([]corev1.EnvVar{{Name: "MINE", Value: "1"}}))
			g.Expect(names["stays"].Resources.Limits).To(SatisfyAll(HaveKey(corev1.ResourceCPU), HaveKey(corev1.ResourceMemory)))
			g.Expect(names["stays"].Image).To(Equal("i:new"))
			g.Expect(spec.InitContainers).To(HaveLen(1))
			g.Expect(spec.InitContainers[0].Name).To(Equal("new-first"))
			g.Expect(spec.Volumes).To(HaveLen(1))
			g.Expect(spec.Volumes[0].Name).To(Equal("new"))

			version := live.GetResourceVersion()
			applier.Forget()
			g.Expect(apply(renamed(kind, "new")).GetResourceVersion()).To(Equal(version), "another apply writes nothing")
		})
	}
}

// TestTheOperatorMayRenameContainers has an operator with the rights of its manifests upgrade a DaemonSet with an older name of its container.
func TestTheOperatorMayRenameContainers(t *testing.T) {
	s := installed(t)
	g := newG(t)
	g.Expect(s.stopOperator()).To(Succeed())
	live := &appsv1.DaemonSet{}
	g.Expect(s.exists(t, live, render.OpenVSwitch)()).To(Succeed())
	want := live.Spec.Template.Spec.Containers[0].Name
	older := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{
		Name: live.Name, Namespace: live.Namespace, Labels: live.Labels, OwnerReferences: live.OwnerReferences,
	}, Spec: live.Spec}
	older.Spec.Template.Spec.Containers[0].Name = "ovs"
	applier := &workload.Applier{Client: s.admin, APIReader: s.admin, Cache: s.admin, FieldOwner: fieldOwner}
	g.Expect(applier.For(s.cluster(t), v1alpha1.GroupVersion.WithKind("OVNCluster")).ApplyUnowned(t.Context(), older)).To(Succeed())
	g.Expect(s.exists(t, live, render.OpenVSwitch)()).To(Succeed())
	g.Expect(live.Spec.Template.Spec.Containers).To(HaveLen(1))
	tune(t, live, map[string]any{
		"containers": []any{map[string]any{"name": "ovs", "resources": map[string]any{"limits": map[string]any{"memory": "3Gi"}}}},
	})

	s.operator(t)
	g.Eventually(func() []string {
		g.Expect(s.exists(t, live, render.OpenVSwitch)()).To(Succeed())
		var names []string
		for _, c := range live.Spec.Template.Spec.Containers {
			names = append(names, c.Name)
		}
		return names
	}).Should(Equal([]string{want}))
	s.settle(t, live, 2)
}
