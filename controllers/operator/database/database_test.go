// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package database

import (
	"errors"
	"fmt"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/controllers/operator/status"
	"github.com/kiln-net/kiln/controllers/operator/upgrade"
	"github.com/kiln-net/kiln/internal/workload"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// TestNoMemberIsReplacedWhileAnotherIsAway stops a node of a member. At first only the other members notice.
func TestNoMemberIsReplacedWhileAnotherIsAway(t *testing.T) {
	const image, outdated, current = "kiln.local/kiln:next", "before", "now"
	g := NewWithT(t)
	var pods []client.Object
	var nodes []corev1.Node
	reports := map[string]adminapi.Status{}
	nodeOf := func(i int) string { return fmt.Sprintf("n%d", i) }
	for i := range 3 {
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("%s-%d", render.NorthboundName, i), Namespace: "members", UID: types.UID(nodeOf(i)),
				Labels:      map[string]string{v1alpha1.PartOfLabel: v1alpha1.PartOf, v1alpha1.ComponentLabel: render.NorthboundName},
				Annotations: map[string]string{render.TemplateAnnotation: outdated},
			},
			Spec:   corev1.PodSpec{NodeName: nodeOf(i), Containers: []corev1.Container{{Name: "c", Image: image}}},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
		nodes = append(nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeOf(i)}})
		reports[nodeOf(i)] = adminapi.Status{Role: adminapi.RoleFollower, Connected: true}
	}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: render.NorthboundName, Namespace: "members"}, Spec: appsv1.StatefulSetSpec{Replicas: new(int32(3))}}
	set.Status.UpdateRevision = current
	set.Spec.Template.Annotations = map[string]string{render.TemplateAnnotation: current}
	admin := fake.NewClientBuilder().WithObjects(append(pods, set)...).WithStatusSubresource(set).Build()
	cluster := &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	applier := &workload.Applier{Client: admin, APIReader: admin, Cache: admin, FieldOwner: "test"}
	p := of(render.Northbound, seeing(time.Now(), nodes...))
	p.Objects = applier.For(cluster, v1alpha1.GroupVersion.WithKind("OVNCluster"))
	p.Config.Image, p.OVNCluster.Status.Upgrade.Images, p.reports = image, []string{image}, reports
	for _, pod := range pods {
		p.Report.Pods = append(p.Report.Pods, *pod.(*corev1.Pod).DeepCopy())
	}
	g.Expect(p.Objects.Apply(t.Context(), &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: set.Name, Namespace: set.Namespace}, Spec: set.Spec})).To(Succeed())
	kept := func() (nodes []string) {
		var pods corev1.PodList
		g.Expect(admin.List(t.Context(), &pods)).To(Succeed())
		for _, pod := range pods.Items {
			nodes = append(nodes, pod.Spec.NodeName)
		}
		return nodes
	}
	replace := func() {
		t.Helper()
		err := p.replaceOutdated(t.Context())
		g.Expect(err == nil || errors.As(err, new(*status.Halt))).To(BeTrue(), "%v", err)
	}

	last := nodeOf(2)
	said := reports[last]
	delete(reports, last) // it may be replaced itself, because it does not serve
	replace()
	g.Expect(kept()).To(ConsistOf(nodeOf(0), nodeOf(1)))
	p.Report.Pods[2].Annotations[render.TemplateAnnotation], p.Replacer = current, &upgrade.Replacer{} // it is ready again and has not joined yet
	reports[last] = adminapi.Status{}
	replace()
	g.Expect(kept()).To(ConsistOf(nodeOf(0), nodeOf(1)))
	reports[last] = said
	replace()
	g.Expect(kept()).To(ConsistOf(nodeOf(1)))
}
