// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

// The namespaces of the subnet in config/samples/subnet.yaml.
const (
	webNamespace  = "web"
	shopNamespace = "shop"
)

// Annotation keys of a pod's address requests.
var (
	keyIPPool  = kubeovnv1.AnnotationIPPool.Key()
	keyAddress = kubeovnv1.AnnotationIPAddress.Key()
	keyMAC     = kubeovnv1.AnnotationMACAddress.Key()
)

var _ = Describe("addresses", Ordered, ContinueOnFailure, func() {
	var asker *corev1.Pod // in the default subnet, so answers to it are routed

	BeforeAll(func(ctx SpecContext) {
		applySample(ctx, "subnet.yaml")
		DeferCleanup(func(ctx SpecContext) {
			deleteObjects(ctx, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
		}, NodeTimeout(time.Minute))
		for _, name := range []string{webNamespace, shopNamespace, "e2e-asker"} {
			makeNamespace(ctx, name)
			DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, name) }, NodeTimeout(4*time.Minute))
		}
		Eventually(inForce).WithContext(ctx).WithArguments("web").WithTimeout(30 * time.Second).Should(BeTrue())
		asker = serve(ctx, "e2e-asker", "asker", 0)
	}, NodeTimeout(3*time.Minute))

	It("stay with the pods of a StatefulSet on whatever node, and are free when it is scaled down", Label(smoke), func(ctx SpecContext) {
		sets := suite.Cluster.AppsV1().StatefulSets(webNamespace)
		template := templateOf("set")
		template.Spec.NodeSelector = onNode(suite.Workers[0])
		set, err := sets.Create(ctx, &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: "set"},
			Spec: appsv1.StatefulSetSpec{
				Replicas: new(int32(2)), Selector: selectorOf("set"), Template: template, PodManagementPolicy: appsv1.ParallelPodManagement,
			},
		}, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		before := []*corev1.Pod{readyOn(ctx, webNamespace, "set-0", suite.Workers[0]), readyOn(ctx, webNamespace, "set-1", suite.Workers[0])}

		base := set.DeepCopy()
		set.Spec.Template.Spec.NodeSelector = onNode(suite.Workers[1])
		Expect(suite.Objects.Patch(ctx, set, client.MergeFrom(base))).To(Succeed()) // deletes the pods one by one and recreates them
		for i, old := range before {
			again := readyOn(ctx, webNamespace, fmt.Sprintf("set-%d", i), suite.Workers[1])
			Expect(again.UID).NotTo(Equal(old.UID))
			Expect(cluster.PodAddrs(again)).To(And(HaveLen(2), Equal(cluster.PodAddrs(old))))
			Expect(again.Annotations[keyMAC]).To(And(Not(BeEmpty()), Equal(old.Annotations[keyMAC])))
			expectReach(ctx, asker, again)
			expectReach(ctx, again, asker)
		}

		By("scaling down")
		Expect(suite.Objects.Patch(ctx, set, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":1}}`)))).To(Succeed())
		heir := cluster.Server(webNamespace, "heir", suite.Workers[0])
		heir.Annotations = map[string]string{keyAddress: before[1].Annotations[keyAddress]}
		heir, err = suite.Cluster.Run(ctx, heir)
		Expect(err).NotTo(HaveOccurred())
		Expect(cluster.PodAddrs(heir)).To(Equal(cluster.PodAddrs(before[1])))
		expectReach(ctx, asker, heir)
	}, SpecTimeout(4*time.Minute))

	It("of pools and lists go to the pods that name them", Label(smoke), func(ctx SpecContext) {
		applySample(ctx, "ippool.yaml")
		DeferCleanup(func(ctx SpecContext) {
			removePods(ctx, webNamespace)
			deleteObjects(ctx, &kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "web-front"}})
		}, NodeTimeout(2*time.Minute))
		front, err := suite.Cluster.WaitPod(ctx, webNamespace, "front", cluster.Ready)
		Expect(err).NotTo(HaveOccurred())
		byName := deploy(ctx, "by-name", map[string]string{keyIPPool: "web-front"})
		for _, pod := range append(byName, front) {
			addrs := cluster.PodAddrs(pod)
			Expect(addrs).To(HaveLen(2))
			for _, a := range addrs {
				Expect(netip.MustParsePrefix("10.17.0.192/27").Contains(a) || netip.MustParsePrefix("fd00:10:17::200/124").Contains(a)).To(BeTrue(), a.String())
			}
			expectReach(ctx, asker, pod)
		}
		list := []string{"10.17.0.20,fd00:10:17::20", "10.17.0.21,fd00:10:17::21", "10.17.0.22,fd00:10:17::22"}
		for _, pod := range deploy(ctx, "by-list", map[string]string{keyIPPool: strings.Join(list, ";")}) {
			Expect(list).To(ContainElement(pod.Annotations[keyAddress]))
			expectReach(ctx, asker, pod)
		}

		By("a pool of a namespace, whose pods name none")
		shopOnly := &kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "shop-only"}, Spec: kubeovnv1.IPPoolSpec{
			Subnet: "web", IPs: []string{"10.17.1.0/29", "fd00:10:17::1:0/125"}, Namespaces: []string{shopNamespace},
		}}
		Expect(suite.Objects.Create(ctx, shopOnly)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			removePods(ctx, shopNamespace)
			deleteObjects(ctx, shopOnly)
		}, NodeTimeout(2*time.Minute))
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(shopOnly), shopOnly)).To(Succeed())
			g.Expect(conditionIs(shopOnly.Status.Conditions, kubeovnv1.ConditionReady)).To(BeTrue())
		}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
		till := serve(ctx, shopNamespace, "till", 1)
		for _, a := range cluster.PodAddrs(till) {
			Expect(netip.MustParsePrefix("10.17.1.0/29").Contains(a) || netip.MustParsePrefix("fd00:10:17::1:0/125").Contains(a)).To(BeTrue(), a.String())
		}
		expectReach(ctx, asker, till)
	}, SpecTimeout(4*time.Minute))

	It("that were requested or reserved stay with a pod, again and again", func(ctx SpecContext) {
		applySample(ctx, "pod_static_address.yaml")
		applySample(ctx, "ip_reserved.yaml")
		DeferCleanup(func(ctx SpecContext) {
			deleteObjects(ctx, &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "db.web"}})
		}, NodeTimeout(time.Minute))
		var former *corev1.Pod
		for _, worker := range []int{0, 1} {
			db := serve(ctx, webNamespace, "db", worker)
			Expect(db.Annotations[keyAddress]).To(Equal("10.17.0.50,fd00:10:17::50"))
			expectReach(ctx, asker, db)
			if former != nil {
				Expect(db.Annotations[keyMAC]).To(Equal(former.Annotations[keyMAC]))
			}
			former = db
			removePods(ctx, webNamespace, "db")
		}
		static, err := suite.Cluster.WaitPod(ctx, webNamespace, "static", cluster.Ready)
		Expect(err).NotTo(HaveOccurred())
		Expect(addressesOf(static)).To(ConsistOf("10.17.0.100", "fd00:10:17::100"))
		out, err := suite.Cluster.Exec(ctx, static, "cat", "/sys/class/net/eth0/address")
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.TrimSpace(out)).To(Equal("02:00:00:00:01:00"))
		expectReach(ctx, asker, static)
	}, SpecTimeout(4*time.Minute))

	// A neighbour keeps the MAC address of the earlier pod until it expires, or until the new pod announces its own: when it is connected, and a
	// second later again, for SYNs that are sent again after one and three seconds.
	It("are reached within seconds when their MAC address has changed", Label(timed), func(ctx SpecContext) {
		neighbour := serve(ctx, webNamespace, "neighbour", 0)
		for _, mac := range []string{"02:00:00:00:16:01", "02:00:00:00:16:02"} {
			pod := cluster.Server(webNamespace, "changes", suite.Workers[1])
			pod.Annotations = map[string]string{keyAddress: "10.17.0.60,fd00:10:17::60", keyMAC: mac}
			pod, err := suite.Cluster.Run(ctx, pod)
			Expect(err).NotTo(HaveOccurred())
			for _, a := range cluster.PodAddrs(pod) {
				list, _, err := connectOnce(ctx, fromPod(neighbour), netip.AddrPortFrom(a, cluster.HTTPPort))
				Expect(err).NotTo(HaveOccurred())
				Expect(list[0].Failure).To(BeEmpty(), "the first connection to %s", a)
				Expect(list[0].Took).To(BeNumerically("<", 3*time.Second+lossLimit()), "the first connection to %s", a)
			}
			removePods(ctx, webNamespace, "changes")
		}
	}, SpecTimeout(2*time.Minute))
})

// applySample applies a sample unchanged.
func applySample(ctx context.Context, file string) {
	GinkgoHelper()
	Expect(cluster.ApplyFile(ctx, suite.Lab.Kubeconfig(), filepath.Join("../../config/samples", file))).To(Succeed())
}

// deleteObjects deletes objects and waits until they no longer exist.
func deleteObjects(ctx context.Context, objects ...client.Object) {
	GinkgoHelper()
	for _, o := range objects {
		Expect(client.IgnoreNotFound(suite.Objects.Delete(ctx, o))).To(Succeed())
	}
	for _, o := range objects {
		Eventually(func() bool {
			return apierrors.IsNotFound(suite.Objects.Get(ctx, client.ObjectKeyFromObject(o), o))
		}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(200*time.Millisecond).Should(BeTrue(), "%s is not gone", o.GetName())
	}
}

func conditionIs(conditions []metav1.Condition, kind string) bool {
	for _, c := range conditions {
		if c.Type == kind {
			return c.Status == metav1.ConditionTrue
		}
	}
	return false
}

func templateOf(app string) corev1.PodTemplateSpec {
	pod := cluster.Server("", app, "")
	return corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}
}

func selectorOf(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func onNode(name string) map[string]string { return map[string]string{corev1.LabelHostname: name} }

// readyOn waits until a pod is ready on a node.
func readyOn(ctx context.Context, namespace, name, node string) *corev1.Pod {
	GinkgoHelper()
	pod, err := suite.Cluster.WaitPod(ctx, namespace, name, func(p *corev1.Pod) bool { return p.Spec.NodeName == node && cluster.Ready(p) })
	Expect(err).NotTo(HaveOccurred())
	return pod
}

// deploy runs a Deployment of two pods with these annotations, and returns the pods when they are ready.
func deploy(ctx context.Context, name string, annotations map[string]string) []*corev1.Pod {
	GinkgoHelper()
	template := templateOf(name)
	template.Annotations = annotations
	deployments := suite.Cluster.AppsV1().Deployments(webNamespace)
	_, err := deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       appsv1.DeploymentSpec{Replicas: new(int32(2)), Selector: selectorOf(name), Template: template},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	var ready []*corev1.Pod
	Eventually(func(g Gomega) {
		list, err := suite.Cluster.CoreV1().Pods(webNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		g.Expect(err).NotTo(HaveOccurred())
		ready = nil
		for i := range list.Items {
			if cluster.Ready(&list.Items[i]) {
				ready = append(ready, &list.Items[i])
			}
		}
		g.Expect(ready).To(HaveLen(2))
	}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(200 * time.Millisecond).Should(Succeed())
	return ready
}
