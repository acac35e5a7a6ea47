// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

const badNamespace = "e2e-bad-input"

var _ = Describe("bad input", Ordered, func() {
	BeforeAll(func(ctx SpecContext) { makeNamespace(ctx, badNamespace) })
	AfterAll(func(ctx SpecContext) {
		// Bad input must not affect pods of other subnets.
		bystander := cluster.Server(badNamespace, "bystander", suite.Workers[0])
		_, err := suite.Cluster.Run(ctx, bystander)
		Expect(err).NotTo(HaveOccurred())
		deleteNamespace(ctx, badNamespace)
	}, NodeTimeout(3*time.Minute))

	It("says in an event why a pod gets no address, and ends the pod as soon as a running one", Label(timed), func(ctx SpecContext) {
		pod := cluster.Server(badNamespace, "asks", suite.Workers[0])
		pod.Annotations = map[string]string{"ovn.kubernetes.io/ip_address": "192.0.2.7"}
		_, err := asController().CoreV1().Pods(badNamespace).Create(ctx, pod, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		Eventually(warnings).WithContext(ctx).WithArguments(badNamespace, pod.Name).WithTimeout(30 * time.Second).
			Should(ContainElement(ContainSubstring("address 192.0.2.7 is not one that a port of subnet ovn-default")))
		begun := time.Now()
		Expect(suite.Cluster.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{})).To(Succeed())
		Eventually(func() bool {
			_, err := suite.Cluster.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(100 * time.Millisecond).Should(BeTrue())
		within(begun, usualPodStart, "deletion of a pod that waits for its address")
	}, SpecTimeout(3*time.Minute))

	It("refuses a static address that is taken, and gives it once it is free", Label(smoke), func(ctx SpecContext) {
		static := map[string]string{"ovn.kubernetes.io/ip_address": "10.16.77.7"}
		holder := cluster.Server(badNamespace, "holder", suite.Workers[0])
		holder.Annotations = static
		_, err := suite.Cluster.Run(ctx, holder)
		Expect(err).NotTo(HaveOccurred())
		second := cluster.Server(badNamespace, "second", suite.Workers[0])
		second.Annotations = static
		pods := suite.Cluster.CoreV1().Pods(badNamespace)
		_, err = pods.Create(ctx, second, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		Eventually(warnings).WithContext(ctx).WithArguments(badNamespace, "second").WithTimeout(30 * time.Second).
			Should(ContainElement(ContainSubstring("address 10.16.77.7 is taken by holder.")))
		Expect(pods.Delete(ctx, "holder", metav1.DeleteOptions{})).To(Succeed())
		got, err := suite.Cluster.WaitPod(ctx, badNamespace, "second", cluster.Ready)
		Expect(err).NotTo(HaveOccurred())
		Expect(got.Status.PodIP).To(Equal("10.16.77.7"))
	}, SpecTimeout(3*time.Minute))

	It("says that a subnet is full, and serves the waiting pod once an address is free", Label(smoke), func(ctx SpecContext) {
		subnet := &kubeovnv1.Subnet{
			ObjectMeta: metav1.ObjectMeta{Name: "tiny"},
			Spec:       kubeovnv1.SubnetSpec{CIDRBlock: "10.88.0.0/30"}, // one address besides the gateway's
		}
		Expect(suite.Objects.Create(ctx, subnet)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(suite.Objects.Delete(ctx, subnet)).To(Succeed()) })
		inTiny := map[string]string{"ovn.kubernetes.io/logical_switch": "tiny"}
		one := cluster.Server(badNamespace, "tiny-one", suite.Workers[0])
		one.Annotations = inTiny
		_, err := suite.Cluster.Run(ctx, one)
		Expect(err).NotTo(HaveOccurred())
		two := cluster.Server(badNamespace, "tiny-two", suite.Workers[0])
		two.Annotations = inTiny
		pods := suite.Cluster.CoreV1().Pods(badNamespace)
		_, err = pods.Create(ctx, two, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		Eventually(warnings).WithContext(ctx).WithArguments(badNamespace, "tiny-two").WithTimeout(30 * time.Second).
			Should(ContainElement(ContainSubstring("subnet tiny is full, it has no free IPv4 address")))
		Expect(pods.Delete(ctx, "tiny-one", metav1.DeleteOptions{})).To(Succeed())
		_, err = suite.Cluster.WaitPod(ctx, badNamespace, "tiny-two", cluster.Ready)
		Expect(err).NotTo(HaveOccurred())
		Expect(pods.Delete(ctx, "tiny-two", metav1.DeleteOptions{})).To(Succeed())
	}, SpecTimeout(3*time.Minute))

	It("starts and isolates pods while the spec of their subnet is invalid", func(ctx SpecContext) {
		subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "mistyped"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.89.0.0/24"}}
		Expect(suite.Objects.Create(ctx, subnet)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			removePods(ctx, badNamespace, "mistyped-web", "mistyped-client")
			Expect(suite.Objects.Delete(ctx, subnet)).To(Succeed())
		}, NodeTimeout(2*time.Minute))
		run := func(name string) *corev1.Pod {
			pod := cluster.Server(badNamespace, name, suite.Workers[0])
			pod.Annotations = map[string]string{"ovn.kubernetes.io/logical_switch": "mistyped"}
			started, err := suite.Cluster.Run(ctx, pod)
			Expect(err).NotTo(HaveOccurred())
			return started
		}
		web := run("mistyped-web")
		base := subnet.DeepCopy()
		subnet.Spec.ACLs = []kubeovnv1.ACL{{Direction: "to-lport", Priority: 1, Match: "ip4.src = 10.0.0.1", Action: "drop"}}
		Expect(suite.Objects.Patch(ctx, subnet, client.MergeFrom(base))).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(subnet), subnet)).To(Succeed())
			g.Expect(falseMessages(subnet)).To(ContainElement(ContainSubstring("write == to compare; the last valid spec stays applied")))
		}).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
		other := run("mistyped-client") // a new pod
		connects(ctx, other, web, corev1.ProtocolTCP, cluster.HTTPPort, true)
		applyPolicy(ctx, badNamespace, "mistyped", "{podSelector: {matchLabels: {app: mistyped-web}}}")
		connects(ctx, other, web, corev1.ProtocolTCP, cluster.HTTPPort, false)
	}, SpecTimeout(4*time.Minute))
})

// deniedAtApply reports whether the admission policy on requests of pods denied a write.
func deniedAtApply(err error) bool {
	return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'kiln-pod-requests'")
}

// asController returns a client to which the admission policy denies no request of a pod, as to kube-controller-manager: pods with such requests
// exist where they, or their workloads, are older than the policy.
func asController() kubernetes.Interface {
	GinkgoHelper()
	config := *suite.Cluster.Config
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:kube-controller-manager", Groups: []string{"system:masters"}}
	c, err := kubernetes.NewForConfig(&config)
	Expect(err).NotTo(HaveOccurred())
	return c
}

// falseMessages returns the messages of a subnet's conditions that are false or of type Error.
func falseMessages(s *kubeovnv1.Subnet) []string {
	var messages []string
	for _, c := range s.Status.Conditions {
		if string(c.Status) == string(metav1.ConditionFalse) || c.Type == "Error" {
			messages = append(messages, c.Message)
		}
	}
	return messages
}

// warnings returns the messages of the warning events about objects of a name.
func warnings(ctx context.Context, namespace, name string) ([]string, error) {
	events, err := suite.Cluster.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.Set{"involvedObject.name": name, "type": corev1.EventTypeWarning}.String(),
	})
	if err != nil {
		return nil, err
	}
	messages := make([]string, 0, len(events.Items))
	for i := range events.Items {
		messages = append(messages, events.Items[i].Message)
	}
	return messages, nil
}
