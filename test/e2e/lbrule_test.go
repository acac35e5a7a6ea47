// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

// ruleNamespace is the namespace of a custom VPC's pods.
const ruleNamespace = "e2e-lbrule"

var _ = Describe("SwitchLBRules", Ordered, ContinueOnFailure, func() {
	var near, far *corev1.Pod // in the rule's subnet, and in another subnet of its VPC
	backends := []string{"rule-one", "rule-two"}

	BeforeAll(func(ctx SpecContext) {
		applySample(ctx, "subnet.yaml")
		DeferCleanup(func(ctx SpecContext) {
			deleteObjects(ctx, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
		}, NodeTimeout(time.Minute))
		for _, name := range []string{webNamespace, "e2e-asker"} {
			makeNamespace(ctx, name)
			DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, name) }, NodeTimeout(4*time.Minute))
		}
		Eventually(inForce).WithContext(ctx).WithArguments("web").WithTimeout(30 * time.Second).Should(BeTrue())
		applySample(ctx, "switch_lb_rule.yaml")
		DeferCleanup(func(ctx SpecContext) { deleteRules(ctx, "web", "web-endpoints", "e2e-checked") }, NodeTimeout(time.Minute))
		for i, name := range backends {
			mortal(ctx, webNamespace, name, i)
		}
		near, far = serve(ctx, webNamespace, "near", 0), serve(ctx, "e2e-asker", "far", 1)
	}, NodeTimeout(4*time.Minute))

	It("lead to ready pods, from their own subnet and from others", Label(smoke), func(ctx SpecContext) {
		rule := &kubeovnv1.SwitchLBRule{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
		expectConditions(ctx, rule, &rule.Status.Conditions, kubeovnv1.ConditionReady, kubeovnv1.ConditionEndpointsChecked)
		for _, from := range []*corev1.Pod{near, far} {
			for _, vip := range []string{"10.17.0.230", "fd00:10:17::230"} {
				front := netip.AddrPortFrom(netip.MustParseAddr(vip), 80)
				first := answerOf(ctx, fromPod(from), front)
				Expect(first).To(BeElementOf(backends), "from %s", from.Name)
				for range 5 { // sessionAffinity: ClientIP
					Expect(connectsAtOnce(ctx, fromPod(from), front)).To(Equal(first))
				}
			}
		}
	}, SpecTimeout(2*time.Minute))

	// If the policy dropped health checks, the other endpoint would be left out as well, and the first one would never come back.
	It("leave out an endpoint that does not answer, and take it back, under a policy that isolates it", Label(timed), func(ctx SpecContext) {
		rule := &kubeovnv1.SwitchLBRule{ObjectMeta: metav1.ObjectMeta{Name: "e2e-checked"}}
		rule.Spec.VIP, rule.Spec.Namespace, rule.Spec.Selector = "172.30.0.77,fd00:172:30::77", webNamespace, []string{"app:web"}
		rule.Spec.Ports = []kubeovnv1.LBRulePort{{Port: 80, TargetPort: cluster.HTTPPort}}
		Expect(suite.Objects.Create(ctx, rule)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { deleteRules(ctx, rule.Name) }, NodeTimeout(time.Minute))
		vips := []string{"172.30.0.77", "fd00:172:30::77"}
		answering := func(want ...string) {
			GinkgoHelper()
			for _, vip := range vips {
				Eventually(askOften).WithContext(ctx).WithArguments(far, vip).WithTimeout(90*time.Second).Should(HaveExactElements(want), vip)
			}
		}
		answering(backends...)
		applyPolicy(ctx, webNamespace, "isolates", `
podSelector: {matchLabels: {app: web}}
policyTypes: [Ingress, Egress]
ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: e2e-asker}}}]}]`)
		isolated, err := suite.Cluster.CoreV1().Pods(webNamespace).Get(ctx, backends[0], metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		var targets []target
		for _, a := range cluster.PodAddrs(isolated) {
			targets = append(targets, target{tcp, netip.AddrPortFrom(a, cluster.HTTPPort)})
		}
		apartAt(ctx, near, far, targets...)
		leavesOut(ctx, backends, answering)
	}, SpecTimeout(6*time.Minute))

	It("serve custom VPCs, at addresses that others have as well", func(ctx SpecContext) {
		rule := &kubeovnv1.SwitchLBRule{ObjectMeta: metav1.ObjectMeta{Name: ruleNamespace}}
		client := overlapping(ctx, false, rule)
		rule.Spec.VIP, rule.Spec.Namespace, rule.Spec.Selector = "10.17.0.230,fd00:10:17::230", ruleNamespace, []string{"app:web"}
		rule.Spec.Ports = []kubeovnv1.LBRulePort{{Port: 80, TargetPort: cluster.HTTPPort}}
		Expect(suite.Objects.Create(ctx, rule)).To(Succeed())
		expectConditions(ctx, rule, &rule.Status.Conditions, kubeovnv1.ConditionEndpointsChecked)
		for _, vip := range []string{"10.17.0.230", "fd00:10:17::230"} {
			Eventually(askRule).WithContext(ctx).WithArguments(client, vip).WithTimeout(30 * time.Second).Should(Equal("theirs"))
			Eventually(askRule).WithContext(ctx).WithArguments(far, vip).WithTimeout(30 * time.Second).Should(BeElementOf(backends))
		}
	}, SpecTimeout(5*time.Minute))

	It("leave nothing behind", func(ctx SpecContext) {
		deleteRules(ctx, "web", "web-endpoints", "e2e-checked")
		Eventually(func(g Gomega) {
			var vips kubeovnv1.VipList
			g.Expect(suite.Objects.List(ctx, &vips)).To(Succeed())
			for i := range vips.Items {
				g.Expect(vips.Items[i].OwnerReferences).To(BeEmpty(), vips.Items[i].Name)
			}
			var services corev1.ServiceList
			g.Expect(suite.Objects.List(ctx, &services, client.InNamespace(webNamespace))).To(Succeed())
			g.Expect(services.Items).To(BeEmpty())
		}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
		var checks []func()
		for _, vip := range []string{"10.17.0.230", "fd00:10:17::230"} {
			front := netip.AddrPortFrom(netip.MustParseAddr(vip), 80)
			checks = append(checks, func() { notServed(ctx, fromPod(far), front, func() {}) }) // they were served until the rule was deleted
		}
		together(checks...)
	}, SpecTimeout(3*time.Minute))
})

// mortal runs a pod with the label app=web and no readiness probe. Its server stays down while the file /tmp/down exists.
func mortal(ctx context.Context, namespace, name string, worker int) {
	GinkgoHelper()
	pod := cluster.Server(namespace, name, suite.Workers[worker%len(suite.Workers)])
	pod.Labels = map[string]string{"app": "web"}
	c := &pod.Spec.Containers[0]
	c.ReadinessProbe = nil
	c.Command = []string{"sh", "-c", fmt.Sprintf(
		"while :; do [ -e /tmp/down ] || /agnhost netexec --http-port=%d --udp-port=-1; sleep 1; done", cluster.HTTPPort)}
	c.Args = nil
	_, err := suite.Cluster.Run(ctx, pod)
	Expect(err).NotTo(HaveOccurred())
}

// leavesOut stops the server of the first backend, whose pod stays ready, and starts it again.
func leavesOut(ctx context.Context, backends []string, answering func(want ...string)) {
	GinkgoHelper()
	pod, err := suite.Cluster.CoreV1().Pods(webNamespace).Get(ctx, backends[0], metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	_, err = suite.Cluster.Exec(ctx, pod, "sh", "-c", "touch /tmp/down; kill $(pidof agnhost)")
	Expect(err).NotTo(HaveOccurred())
	stopped := time.Now()
	answering(backends[1:]...)
	within(stopped, 15*time.Second, "server stopped → its endpoint is left out")
	pod, err = suite.Cluster.CoreV1().Pods(webNamespace).Get(ctx, backends[0], metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	Expect(cluster.Ready(pod)).To(BeTrue(), "the pod stays ready: the health check is what leaves it out")
	_, err = suite.Cluster.Exec(ctx, pod, "rm", "/tmp/down")
	Expect(err).NotTo(HaveOccurred())
	answering(backends...)
}

// overlapping creates a VPC with addresses that the default VPC has as well, a backend called theirs and a client in it. The
// clean-up deletes the rules of the test before the VPC.
func overlapping(ctx context.Context, nat bool, rules ...client.Object) (asks *corev1.Pod) {
	GinkgoHelper()
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: ruleNamespace + "-vpc"}, Spec: kubeovnv1.VpcSpec{
		Namespaces: []string{ruleNamespace}, ClusterAccess: kubeovnv1.ClusterAccessServices,
	}}
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: ruleNamespace}, Spec: kubeovnv1.SubnetSpec{
		Vpc: vpc.Name, Namespaces: []string{ruleNamespace}, CIDRBlock: "10.17.0.0/24,fd00:10:17::/112", NATOutgoing: nat,
	}}
	Expect(suite.Objects.Create(ctx, vpc)).To(Succeed())
	Expect(suite.Objects.Create(ctx, subnet)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		deleteObjects(ctx, rules...)
		deleteNamespace(ctx, ruleNamespace)
		deleteObjects(ctx, subnet, vpc)
	}, NodeTimeout(4*time.Minute))
	makeNamespace(ctx, ruleNamespace)
	Eventually(inForce).WithContext(ctx).WithArguments(ruleNamespace).WithTimeout(30 * time.Second).Should(BeTrue())
	mortal(ctx, ruleNamespace, "theirs", 0)
	return serve(ctx, ruleNamespace, "client", 1)
}

// expectConditions waits until all these conditions are true. of points to the object's conditions.
func expectConditions(ctx context.Context, object client.Object, of *[]metav1.Condition, conditions ...string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(object), object)).To(Succeed())
		for _, c := range conditions {
			g.Expect(conditionIs(*of, c)).To(BeTrue(), "%s of %+v", c, *of)
		}
	}).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
}

func deleteRules(ctx context.Context, names ...string) {
	GinkgoHelper()
	for _, name := range names {
		deleteObjects(ctx, &kubeovnv1.SwitchLBRule{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
}

// askRule returns the name of the pod that answers on port 80 of an address, or "" if none does.
func askRule(ctx context.Context, from *corev1.Pod, vip string) string {
	url := fmt.Sprintf("http://%s/hostname", netip.AddrPortFrom(netip.MustParseAddr(vip), 80))
	name, err := suite.Cluster.Exec(ctx, from, "curl", "-sf", "-m", "1", url)
	if err != nil {
		return ""
	}
	return name
}

// askOften returns the sorted names of the pods that answer twenty requests, without duplicates. "" stands for a request without an
// answer.
func askOften(ctx context.Context, from *corev1.Pod, vip string) []string {
	var names []string
	for range 20 {
		names = append(names, askRule(ctx, from, vip))
	}
	slices.Sort(names)
	return slices.Compact(names)
}
