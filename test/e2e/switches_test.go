// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// switchSpecs change the fields of the OVNCluster for a chained CNI plugin while pods use Services and a policy applies, and change
// them back. near and far are servers.
func switchSpecs(near, far **corev1.Pod) {
	It("reach pods through nodes without load balancers of OVN, and policies can be ignored", Label(disruptive), func(ctx SpecContext) {
		serverOf(ctx, "shut", suite.Workers[0], "shut")
		open := serviceOf(ctx, "switched", func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"name": "near"} })
		shut := serviceOf(ctx, "switched-shut", func(s *corev1.ServiceSpec) { s.Selector = map[string]string{"app": "shut"} })
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: serviceNamespace, Name: "shut"}}
		np.Spec = networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "shut"}}}
		Expect(suite.Objects.Create(ctx, np)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			Expect(suite.Objects.Delete(ctx, np)).To(Succeed())
			removePods(ctx, serviceNamespace, "shut", "switched-new")
		}, NodeTimeout(2*time.Minute))
		like := near4(*near)
		before := func() {
			GinkgoHelper()
			servedBy(ctx, fromPod(*far), frontOf(open, like), "near")
			silent(ctx, fromPod(*far), frontOf(shut, like), opens(ctx, fromPod(*far), frontOf(open, like)))
			expectConflists(ctx, "01-kube-ovn.conflist")
		}
		before()

		spec := asInstalled()
		spec.Services.PodAccess, spec.Policies.NetworkPolicies, spec.Agent.CNIConfPriority = v1alpha1.PodAccessNode, v1alpha1.NetworkPoliciesIgnored, "10"
		DeferCleanup(func(ctx SpecContext) { // also after a failure
			applyAndSettle(ctx, asInstalled())
		}, NodeTimeout(6*time.Minute))
		applyAndSettle(ctx, spec)
		servedBy(ctx, fromPod(*far), frontOf(shut, like), "shut")
		own := near4(*far).String()
		Eventually(func() string { return fetchFrom(ctx, fromPod(*far), frontOf(open, like), "/clientip") }).WithContext(ctx).
			WithTimeout(time.Minute).Should(And(Not(BeEmpty()), Not(HavePrefix(own))), "the endpoint sees the client's node")
		expectConflists(ctx, "10-kube-ovn.conflist")
		serverOf(ctx, "switched-new", suite.Workers[1], "new")

		applyAndSettle(ctx, asInstalled())
		before()
		Eventually(func() string { return fetchFrom(ctx, fromPod(*far), frontOf(open, like), "/clientip") }).WithContext(ctx).
			WithTimeout(time.Minute).Should(HavePrefix(own), "the endpoint sees the client")
	}, SpecTimeout(12*time.Minute))
}

// applyAndSettle applies a spec and waits until all its pods run.
func applyAndSettle(ctx context.Context, spec v1alpha1.OVNClusterSpec) {
	GinkgoHelper()
	Expect(suite.Cluster.ApplyOVNCluster(ctx, spec)).To(Succeed())
	Eventually(func(g Gomega) {
		var oc v1alpha1.OVNCluster
		g.Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc)).To(Succeed())
		progressing := meta.FindStatusCondition(oc.Status.Conditions, v1alpha1.ConditionProgressing)
		g.Expect(progressing).NotTo(BeNil())
		g.Expect(progressing.ObservedGeneration).To(Equal(oc.Generation))
		g.Expect(progressing.Status).To(Equal(metav1.ConditionFalse), progressing.Message)
		g.Expect(progressing.Reason).To(Equal("AsSpecified"), progressing.Message)
	}).WithContext(ctx).WithTimeout(5 * time.Minute).WithPolling(time.Second).Should(Succeed())
}

// expectConflists waits until each node has exactly this CNI configuration.
func expectConflists(ctx context.Context, name string) {
	GinkgoHelper()
	for _, n := range suite.Lab.Nodes() {
		Eventually(func() (string, error) {
			out, err := suite.Node.Exec(ctx, n.Name, "sh", "-c", "ls /etc/cni/net.d")
			return strings.Join(strings.Fields(out), " "), err
		}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(time.Second).Should(Equal(name), fmt.Sprintf("the CNI configurations of %s", n.Name))
	}
}
