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

const egressNamespace = "e2e-egress"

// egressSources are the addresses of the EgressAddress, in the network of the nodes. No machine of the lab has them.
var egressSources = []netip.Addr{netip.MustParseAddr("172.30.0.210"), netip.MustParseAddr("fd00:172:30::d2")}

var _ = Describe("egress addresses by labels", Ordered, ContinueOnFailure, func() {
	BeforeAll(func(ctx SpecContext) {
		makeNamespace(ctx, egressNamespace)
		DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, egressNamespace) }, NodeTimeout(4*time.Minute))
	})

	It("are the sources of selected pods only, from their first packet on", func(ctx SpecContext) {
		egressOn(ctx, suite.Workers[:2]...)
		other := egressPod(ctx, "other", suite.Workers[0], "db")
		for _, worker := range []int{0, 1} {
			pod := egressPod(ctx, "web-"+suite.Workers[worker], suite.Workers[worker], "web")
			for _, like := range cluster.PodAddrs(pod) {
				expectOnly(ctx, pod, like)
				expectSeen(ctx, pod, like, egressSource(like))
			}
		}
		for _, like := range cluster.PodAddrs(other) {
			expectSeen(ctx, other, like, addressOfNode(ctx, suite.Workers[0], like))
		}
		By("a label that changes")
		relabel(ctx, other, "web")
		for _, like := range cluster.PodAddrs(other) {
			expectSeen(ctx, other, like, egressSource(like))
			expectOnly(ctx, other, like)
		}
		relabel(ctx, other, "db")
		for _, like := range cluster.PodAddrs(other) {
			expectSeen(ctx, other, like, addressOfNode(ctx, suite.Workers[0], like))
		}
	}, SpecTimeout(5*time.Minute))

	It("drop packets without a node, and move when a node dies", Label(timed, disruptive, mayRestart), func(ctx SpecContext) {
		e := egressOn(ctx, suite.Workers[1], controlPlane())
		pod := egressPod(ctx, "moved", suite.Workers[0], "web")
		for _, like := range cluster.PodAddrs(pod) {
			expectOnly(ctx, pod, like)
			expectSeen(ctx, pod, like, egressSource(like))
		}
		active, standby := e.Status.Node, e.Status.Standby
		expectLeases(ctx, active, standby)
		DeferCleanup(func(ctx SpecContext) { reviveNode(ctx, active) }, NodeTimeout(time.Minute))
		died := time.Now()
		killNode(ctx, active)
		for _, like := range cluster.PodAddrs(pod) {
			expectSeen(ctx, pod, like, egressSource(like))
			within(died, failover, "node of an egress address dead → packets through the other one, "+like.String())
		}
		reviveNode(ctx, active)
		for _, node := range []string{active, standby} {
			label(ctx, node, "")
		}
		for _, like := range cluster.PodAddrs(pod) {
			Eventually(func() error { _, err := seenBy(ctx, pod, like); return err }).WithContext(ctx).WithTimeout(time.Minute).ShouldNot(Succeed())
			expectOnly(ctx, pod, like)
		}
		label(ctx, standby, "yes")
		for _, like := range cluster.PodAddrs(pod) {
			expectSeen(ctx, pod, like, egressSource(like))
		}
	}, SpecTimeout(8*time.Minute))
})

func egressSource(like netip.Addr) netip.Addr {
	a, _ := cluster.InFamilyOf(egressSources, like)
	return a
}

// egressOn creates an EgressAddress for pods with app: web of the namespace, and labels the nodes that can have it, until the spec ends.
func egressOn(ctx context.Context, nodes ...string) *kubeovnv1.EgressAddress {
	GinkgoHelper()
	return egressIn(ctx, egressNamespace, "e2e", egressSources, "web", nodes...)
}

// egressIn is egressOn for pods with a label app of a namespace.
func egressIn(ctx context.Context, namespace, name string, sources []netip.Addr, app string, nodes ...string) *kubeovnv1.EgressAddress {
	GinkgoHelper()
	for _, node := range nodes {
		label(ctx, node, "yes")
		DeferCleanup(func(ctx SpecContext) { label(ctx, node, "") }, NodeTimeout(time.Minute))
	}
	e := &kubeovnv1.EgressAddress{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.EgressAddressSpec{
		NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
		PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		NodeSelector:      &metav1.LabelSelector{MatchLabels: map[string]string{gatewayLabel: "yes"}},
		Addresses:         []string{sources[0].String(), sources[1].String()},
	}}
	applied(ctx, e)
	return e
}

// egressPod runs a pod with the label app until the spec ends.
func egressPod(ctx context.Context, name, node, app string) *corev1.Pod {
	GinkgoHelper()
	pod := cluster.Server(egressNamespace, name, node)
	pod.Labels = map[string]string{"app": app}
	ready, err := suite.Cluster.Run(ctx, pod)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { deleteObjects(ctx, ready) }, NodeTimeout(2*time.Minute))
	return ready
}

func relabel(ctx context.Context, pod *corev1.Pod, app string) {
	GinkgoHelper()
	base := pod.DeepCopy()
	pod.Labels["app"] = app
	Expect(suite.Objects.Patch(ctx, pod, client.MergeFrom(base))).To(Succeed())
}

// expectOnly sends several requests of a pod. Each that reaches the outside host has the source of the EgressAddress.
func expectOnly(ctx context.Context, pod *corev1.Pod, like netip.Addr) {
	GinkgoHelper()
	for range 10 {
		if from, err := seenBy(ctx, pod, like); err == nil {
			Expect(from).To(Equal(egressSource(like)))
		}
	}
}
