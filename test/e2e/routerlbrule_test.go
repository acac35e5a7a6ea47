// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

var _ = Describe("RouterLBRules", Ordered, ContinueOnFailure, func() {
	var near *corev1.Pod // a client in a subnet of the rule's VPC
	backends := []string{"routed-one", "routed-two"}
	var fronts []netip.AddrPort
	for _, a := range []string{"10.120.0.10", "fd00:10:120::10"} {
		fronts = append(fronts, netip.AddrPortFrom(netip.MustParseAddr(a), 80))
	}

	BeforeAll(func(ctx SpecContext) {
		makeNamespace(ctx, webNamespace)
		DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, webNamespace) }, NodeTimeout(4*time.Minute))
		applySample(ctx, "router_lb_rule.yaml")
		DeferCleanup(func(ctx SpecContext) {
			deleteRouterRules(ctx, "web")
			deleteObjects(ctx, &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
			deleteObjects(ctx, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "external"}})
		}, NodeTimeout(time.Minute))
		for i, name := range backends {
			mortal(ctx, webNamespace, name, i)
		}
		near = serve(ctx, webNamespace, "near", 0)
		wayBack(ctx, &kubeovnv1.Subnet{Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.120.0.10/32,fd00:10:120::10/128"}}, suite.Workers[0], "eth0")
	}, NodeTimeout(4*time.Minute))

	It("lead to pods from a pod, from nodes and from outside", Label(smoke), func(ctx SpecContext) {
		rule := &kubeovnv1.RouterLBRule{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
		expectConditions(ctx, rule, &rule.Status.Conditions, kubeovnv1.ConditionReady, kubeovnv1.ConditionEndpointsChecked)
		for _, front := range fronts {
			servedBy(ctx, fromPod(near), front, backends...)
			servedBy(ctx, fromNode(suite.Workers[0]), front, backends...)
			servedBy(ctx, fromNode(controlPlane()), front, backends...)
			servedBy(ctx, fromOutside, front, backends...)
		}
	}, SpecTimeout(4*time.Minute))

	It("leave out an endpoint that does not answer", Label(timed), func(ctx SpecContext) {
		answering := func(want ...string) {
			GinkgoHelper()
			for _, front := range fronts {
				Eventually(askOften).WithContext(ctx).WithArguments(near, front.Addr().String()).WithTimeout(90 * time.Second).Should(HaveExactElements(want))
			}
		}
		leavesOut(ctx, backends, answering)
	}, SpecTimeout(6*time.Minute))

	It("serve given endpoints", func(ctx SpecContext) {
		pod, err := suite.Cluster.CoreV1().Pods(webNamespace).Get(ctx, backends[1], metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		rule := &kubeovnv1.RouterLBRule{ObjectMeta: metav1.ObjectMeta{Name: "e2e-endpoints"}}
		rule.Spec.OvnEip, rule.Spec.Namespace = "web", webNamespace
		for _, a := range cluster.PodAddrs(pod) {
			rule.Spec.Endpoints = append(rule.Spec.Endpoints, a.String())
		}
		rule.Spec.Ports = []kubeovnv1.LBRulePort{{Port: 81, TargetPort: cluster.HTTPPort}}
		Expect(suite.Objects.Create(ctx, rule)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { deleteRouterRules(ctx, rule.Name) }, NodeTimeout(time.Minute))
		expectConditions(ctx, rule, &rule.Status.Conditions, kubeovnv1.ConditionEndpointsChecked)
		for _, front := range fronts {
			front = netip.AddrPortFrom(front.Addr(), 81)
			servedBy(ctx, fromPod(near), front, backends[1])
			servedBy(ctx, fromNode(suite.Workers[1]), front, backends[1])
			servedBy(ctx, fromOutside, front, backends[1])
		}
	}, SpecTimeout(3*time.Minute))

	It("serve the pods of a custom VPC, which reach the default VPC as well", func(ctx SpecContext) {
		eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: ruleNamespace}}
		rule := &kubeovnv1.RouterLBRule{ObjectMeta: metav1.ObjectMeta{Name: ruleNamespace}}
		theirs := overlapping(ctx, true, rule, eip)
		Expect(suite.Objects.Create(ctx, eip)).To(Succeed())
		rule.Spec.VPC, rule.Spec.OvnEip, rule.Spec.Namespace, rule.Spec.Selector = ruleNamespace+"-vpc", eip.Name, ruleNamespace, []string{"app:web"}
		rule.Spec.Ports = []kubeovnv1.LBRulePort{{Port: 80, TargetPort: cluster.HTTPPort}}
		Expect(suite.Objects.Create(ctx, rule)).To(Succeed())
		expectConditions(ctx, rule, &rule.Status.Conditions, kubeovnv1.ConditionReady)
		Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(eip), eip)).To(Succeed())
		for _, address := range []string{eip.Status.V4IP, eip.Status.V6IP} {
			Eventually(askRule).WithContext(ctx).WithArguments(theirs, address).WithTimeout(30 * time.Second).Should(Equal("theirs"))
			front := netip.AddrPortFrom(netip.MustParseAddr(address), 80)
			notServed(ctx, fromPod(near), front, opens(ctx, fromPod(theirs), front))
		}
		for _, front := range fronts { // the default VPC's fronts are outside addresses for them
			servedBy(ctx, fromPod(theirs), front, backends...)
		}
	}, SpecTimeout(5*time.Minute))

	It("keep their OvnEip, and leave nothing behind", func(ctx SpecContext) {
		eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
		Expect(suite.Objects.Delete(ctx, eip)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(eip), eip)).To(Succeed())
			g.Expect(eip.DeletionTimestamp).NotTo(BeNil())
			g.Expect(conditionIs(eip.Status.Conditions, kubeovnv1.ConditionReady)).To(BeFalse())
		}).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
		for _, front := range fronts {
			servedBy(ctx, fromPod(near), front, backends...)
			servedBy(ctx, fromOutside, front, backends...)
		}
		deleteRouterRules(ctx, "web")
		deleteObjects(ctx, eip)
		Eventually(func(g Gomega) {
			var services corev1.ServiceList
			g.Expect(suite.Objects.List(ctx, &services, client.InNamespace(webNamespace))).To(Succeed())
			g.Expect(services.Items).To(BeEmpty())
		}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
		var checks []func()
		for _, front := range fronts {
			for _, from := range []origin{fromOutside, fromPod(near)} {
				checks = append(checks, func() { notServed(ctx, from, front, func() {}) }) // they were served until the rule was deleted
			}
		}
		together(checks...)
	}, SpecTimeout(3*time.Minute))
})

func deleteRouterRules(ctx context.Context, names ...string) {
	GinkgoHelper()
	for _, name := range names {
		deleteObjects(ctx, &kubeovnv1.RouterLBRule{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
}
