// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/supervisor/adminapi"
)

// TestNoMemberIsReplacedWhileAnotherIsAway stops a node of a member. At first only the other members notice.
func TestNoMemberIsReplacedWhileAnotherIsAway(t *testing.T) {
	const namespace, image, outdated, current = "outdated", "kiln.local/kiln:next", "before", "now"
	admin := theWorld.admin
	g := newG(t)
	g.Expect(admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
	p := &pass{cluster: &v1alpha1.OVNCluster{}, now: theWorld.now()}
	p.config.Image, p.cluster.Status.Upgrade.Images = image, []string{image}
	reports := map[string]adminapi.Status{}
	nodeOf := func(i int) string { return fmt.Sprintf("n%d", i) }
	for i := range 3 {
		pod := theWorld.newPod(fmt.Sprintf("%s-%d", render.NorthboundName, i), "member", nodeOf(i), outdated)
		pod.Namespace = namespace
		g.Expect(admin.Create(t.Context(), pod)).To(Succeed())
		t.Cleanup(func() { _ = client.IgnoreNotFound(admin.Delete(t.Context(), pod, client.GracePeriodSeconds(0))) })
		pod.Labels[render.ComponentLabel] = render.NorthboundName // in memory: other tests look at all namespaces
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		p.pods = append(p.pods, *pod)
		p.nodes = append(p.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeOf(i)}})
		reports[pod.Spec.NodeName] = adminapi.Status{Role: adminapi.RoleFollower, Connected: true}
	}
	set := &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Replicas: new(int32(3))}}
	set.Status.UpdateRevision = current
	set.Spec.Template.Annotations = map[string]string{render.TemplateAnnotation: current}
	p.live = map[string]client.Object{render.NorthboundName: set}
	r := &Reconciler{Client: admin, APIReader: admin, Namespace: namespace}
	kept := func() (nodes []string) {
		var pods corev1.PodList
		g.Expect(admin.List(t.Context(), &pods, client.InNamespace(namespace))).To(Succeed())
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp.IsZero() {
				nodes = append(nodes, pod.Spec.NodeName)
			}
		}
		return nodes
	}
	replace := func() {
		t.Helper()
		err := r.replaceOutdated(t.Context(), p, render.Northbound, reports)
		g.Expect(err == nil || errors.As(err, new(*halt))).To(BeTrue(), "%v", err)
	}

	last := nodeOf(2)
	said := reports[last]
	delete(reports, last) // it may be replaced itself, because it does not serve
	replace()
	g.Expect(kept()).To(ConsistOf(nodeOf(0), nodeOf(1)))
	p.pods[2].Annotations[render.TemplateAnnotation], r.replaced = current, nil // it is ready again and has not joined yet
	reports[last] = adminapi.Status{}
	replace()
	g.Expect(kept()).To(ConsistOf(nodeOf(0), nodeOf(1)))
	reports[last] = said
	replace()
	g.Expect(kept()).To(ConsistOf(nodeOf(1)))
}
