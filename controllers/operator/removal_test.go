// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"slices"
	"testing"

	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/operator/certs"
	"github.com/kiln-net/kiln/controllers/operator/render"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/testing/gate"
	"github.com/kiln-net/kiln/internal/workload"
)

// end acts as the kubelets after the processes of a component's pods have ended.
func (s *scenario) end(t *testing.T, component string) {
	t.Helper()
	g := newG(t)
	var pods corev1.PodList
	ofComponent := client.MatchingLabels{v1alpha1.ComponentLabel: component}
	g.Eventually(func() bool {
		g.Expect(s.admin.List(t.Context(), &pods, client.InNamespace(testNamespace), ofComponent)).To(Succeed())
		return !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp == nil })
	}).Should(BeTrue(), "the pods of %s are not deleted", component)
	for i := range pods.Items {
		g.Expect(s.admin.Delete(t.Context(), &pods.Items[i], client.GracePeriodSeconds(0))).To(Succeed())
	}
}

func subnet() *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion("kubeovn.io/v1")
	u.SetKind("Subnet")
	u.SetName("kept")
	return u
}

// deleteSubnet deletes the object of subnet with its finalizers.
func (s *scenario) deleteSubnet(ctx context.Context) error {
	u := subnet()
	noFinalizers := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	return errors.Join(s.admin.Patch(ctx, u, noFinalizers), s.admin.Delete(ctx, u))
}

// remove deletes the OVNCluster as docs/operations/install.md describes. The second request finds an OVNCluster that is being
// deleted.
func (s *scenario) remove(t *testing.T) {
	t.Helper()
	c := s.cluster(t)
	base := c.DeepCopy()
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, v1alpha1.AnnotationAllowRemoval, "true")
	g := newG(t)
	g.Expect(s.admin.Patch(t.Context(), c, client.MergeFrom(base))).To(Succeed())
	g.Expect(s.admin.Delete(t.Context(), c)).To(Succeed())
	g.Expect(s.admin.Delete(t.Context(), c)).To(Succeed())
}

// TestRemovalAndReinstallation deletes the OVNCluster and creates it again.
func TestRemovalAndReinstallation(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s := newInstallation(t)
	s.secretsKept(t)
	s.takenDown(t)
	s.nodesCleaned(t)
	s.madeAgain(t)
}

func (s *scenario) takenDown(t *testing.T) {
	g := newG(t)
	kept := subnet()
	kept.SetFinalizers([]string{k8s.Finalizer, "example.com/of-others"})
	g.Expect(unstructured.SetNestedField(kept.Object, "10.20.0.0/16", "spec", "cidrBlock")).To(Succeed())
	g.Expect(s.admin.Create(t.Context(), kept)).To(Succeed())
	t.Cleanup(func() { g.Expect(s.deleteSubnet(context.Background())).To(Succeed()) })
	s.addPod(t, "controller-0", render.ControllerName, node, "192.0.2.1", "")
	s.addPod(t, "ovs-0", render.OpenVSwitch, "worker-1", "192.0.2.11", "")
	g.Expect(s.cluster(t).Finalizers).To(ContainElement(Finalizer))

	for what, err := range map[string]error{
		"one": s.admin.Delete(t.Context(), s.cluster(t)), "all": s.admin.DeleteAllOf(t.Context(), &v1alpha1.OVNCluster{}),
	} {
		g.Expect(err).To(MatchError(MatchRegexp("kubectl annotate ovnclusters? default kubeovn.io/allow-removal=true")), what)
	}
	s.remove(t)
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("True Removing: waiting for the end of controller-0"))
	g.Expect(s.absent(t, &appsv1.Deployment{}, render.ControllerName)()).To(BeTrue())
	g.Expect(s.absent(t, &appsv1.DaemonSet{}, render.AgentName)()).To(BeTrue())
	g.Expect(s.exists(t, &appsv1.DaemonSet{}, render.OpenVSwitch)()).To(Succeed())
	g.Expect(s.exists(t, &appsv1.Deployment{}, render.NorthdName)()).To(Succeed())

	s.end(t, render.ControllerName)
	s.end(t, render.AgentName)
	g.Eventually(s.condition(t, "Progressing")).Should(MatchRegexp("^True Removing: waiting for the end of .*ovs-0"))
	g.Expect(s.absent(t, &appsv1.DaemonSet{}, render.OpenVSwitch)()).To(BeTrue())
	for _, db := range []render.Database{render.Northbound, render.Southbound} {
		g.Expect(s.exists(t, &appsv1.StatefulSet{}, db.Workload)()).To(Succeed())
	}

	s.end(t, render.OpenVSwitch)
	s.end(t, render.NorthdName)
	g.Eventually(s.condition(t, "Progressing")).Should(ContainSubstring("waiting for the end of ovn-central-nb-0"))
	g.Expect(s.absent(t, &appsv1.DaemonSet{}, render.CleanUpName)()).To(BeTrue())
	s.end(t, render.NorthboundName)
	s.end(t, render.SouthboundName)
}

func (s *scenario) nodesCleaned(t *testing.T) {
	g := newG(t)
	g.Eventually(s.condition(t, "Progressing")).Should(SatisfyAll(
		ContainSubstring("0 of 2 nodes are clean"), ContainSubstring("control-plane-1: no clean-up pod yet; worker-1: no clean-up pod yet")))
	var cleanUp appsv1.DaemonSet
	g.Expect(s.exists(t, &cleanUp, render.CleanUpName)()).To(Succeed())
	g.Expect(cleanUp.OwnerReferences).To(BeEmpty())
	g.Expect(cleanUp.Spec.Template.Spec.Containers[0].Args).NotTo(ContainElement(HavePrefix("--data-dir")))

	template := cleanUp.Spec.Template.Annotations[render.TemplateAnnotation]
	s.setReady(t, s.addPod(t, "clean-1", render.CleanUpName, node, "192.0.2.1", template), true)
	stuck := s.addPod(t, "clean-2", render.CleanUpName, "worker-1", "192.0.2.11", template)
	stuck.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: render.CleanUpName, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: "the node is not clean yet: no nft"},
	}}}
	g.Expect(s.admin.Status().Update(t.Context(), stuck)).To(Succeed())
	g.Eventually(s.condition(t, "Progressing")).Should(SatisfyAll(
		ContainSubstring("1 of 2 nodes are clean"), HaveSuffix("for worker-1: the node is not clean yet: no nft")))
	var kept = subnet()
	g.Expect(s.admin.Get(t.Context(), client.ObjectKeyFromObject(kept), kept)).To(Succeed())
	g.Expect(kept.GetFinalizers()).To(ContainElement(k8s.Finalizer))

	s.ahead.Store(int64(cleaningTime))
	defer s.ahead.Store(0)
	stuck.Labels["poke"] = "" // the operator would wake up by itself at the deadline
	g.Expect(s.admin.Update(t.Context(), stuck)).To(Succeed())
	g.Eventually(s.absent(t, &v1alpha1.OVNCluster{}, "default")).Should(BeTrue())
	g.Eventually(func() []string { return s.events(t) }).Should(ContainElement("Warning NodesNotCleaned"))
	g.Expect(s.absent(t, &appsv1.DaemonSet{}, render.CleanUpName)()).To(BeTrue())
	g.Expect(s.admin.Get(t.Context(), client.ObjectKeyFromObject(kept), kept)).To(Succeed())
	g.Expect(kept.GetFinalizers()).To(Equal([]string{"example.com/of-others"}))
	for _, name := range certs.Authorities {
		g.Expect(s.exists(t, &corev1.Secret{}, certs.SecretPrefix+name)()).To(Succeed())
	}
}

func (s *scenario) madeAgain(t *testing.T) {
	g := newG(t)
	again := &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	again.Spec.DeletionPolicy = v1alpha1.DeletionDelete
	g.Expect(s.admin.Create(t.Context(), again)).To(Succeed())
	g.Eventually(s.condition(t, "Progressing")).Should(HavePrefix("True Removing: waiting for the end of clean-1, clean-2"))
	g.Expect(s.absent(t, &appsv1.StatefulSet{}, render.NorthboundName)()).To(BeTrue())
	s.end(t, render.CleanUpName)
	g.Eventually(s.exists(t, &appsv1.StatefulSet{}, render.NorthboundName)).Should(Succeed())
}

// TestDataIsDeletedOnRequest changes the policy while nodes are cleaned.
func TestDataIsDeletedOnRequest(t *testing.T) {
	gate.Skip(t, gate.OperatorLong)
	s := newScenario(t)
	s.installCertManager(t)
	s.create(t)
	g := newG(t)
	g.Eventually(s.exists(t, &appsv1.StatefulSet{}, render.NorthboundName)).Should(Succeed())
	issued := certs.IssuedPrefix + certs.Northd
	order := s.named(workload.Untyped(certs.CertificateKind), issued)
	order.SetLabels(map[string]string{render.ManagedByLabel: render.ManagedBy})
	order.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(s.cluster(t), v1alpha1.GroupVersion.WithKind("OVNCluster"))})
	g.Expect(s.admin.Create(t.Context(), order)).To(Succeed())
	g.Expect(s.admin.Create(t.Context(), s.named(&corev1.Secret{}, issued))).To(Succeed())
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.DeletionPolicy = v1alpha1.DeletionRetain })
	s.remove(t)
	var cleanUp appsv1.DaemonSet
	g.Eventually(s.exists(t, &cleanUp, render.CleanUpName)).Should(Succeed())
	before := cleanUp.Spec.Template.Annotations[render.TemplateAnnotation]
	s.setReady(t, s.addPod(t, "clean-before", render.CleanUpName, node, "192.0.2.1", before), true)
	g.Eventually(s.condition(t, "Progressing")).Should(ContainSubstring("1 of 2 nodes are clean"))
	s.changeSpec(t, func(spec *v1alpha1.OVNClusterSpec) { spec.DeletionPolicy = v1alpha1.DeletionDelete })
	g.Eventually(s.condition(t, "Progressing")).Should(ContainSubstring("0 of 2 nodes are clean"), "the objects to delete exist")
	g.Expect(s.admin.Delete(t.Context(), s.named(&corev1.Pod{}, "clean-before"), client.GracePeriodSeconds(0))).To(Succeed())
	g.Expect(s.exists(t, &cleanUp, render.CleanUpName)()).To(Succeed())
	g.Expect(cleanUp.Spec.Template.Spec.Containers[0].Args).To(ContainElement("--data-dir=/etc/origin/ovn"))
	for _, name := range []string{node, "worker-1"} {
		template := cleanUp.Spec.Template.Annotations[render.TemplateAnnotation]
		s.setReady(t, s.addPod(t, "clean-"+name, render.CleanUpName, name, "192.0.2.1", template), true)
	}
	g.Eventually(s.absent(t, &v1alpha1.OVNCluster{}, "default")).Should(BeTrue())
	for _, name := range certs.Authorities {
		g.Expect(s.absent(t, &corev1.Secret{}, certs.SecretPrefix+name)()).To(BeTrue())
	}
	g.Expect(s.countOrders(t)).To(BeZero(), "or cert-manager makes their keys again")
}
