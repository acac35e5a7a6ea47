// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/netip"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

const (
	underlayNamespace = "office"
	underlayProvider  = "net1"
	underlayVlan      = "office"
	silentNamespace   = "silent"
)

// The sample's provider network is on eth2 of each node, which has no address, and its gateway is the lab's router.
var _ = Describe("an underlay subnet", Label("underlay"), Ordered, ContinueOnFailure, func() {
	var here, there *corev1.Pod
	provider := &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: underlayProvider}}
	vlan := &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: underlayVlan}}
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "office"}}

	BeforeAll(func(ctx SpecContext) {
		makeNamespace(ctx, underlayNamespace)
		DeferCleanup(func(ctx SpecContext) {
			removePods(ctx, underlayNamespace)
			deleteObjects(ctx, subnet)
			deleteObjects(ctx, vlan)
			deleteObjects(ctx, provider)
			deleteNamespace(ctx, underlayNamespace)
		}, NodeTimeout(5*time.Minute))
		applySample(ctx, "subnet_underlay.yaml")
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(provider), provider)).To(Succeed())
			g.Expect(provider.Status.Ready).To(BeTrue(), "%+v", provider.Status)
			g.Expect(provider.Status.Vlans).To(ConsistOf(underlayVlan))
		}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
		Eventually(inForce).WithContext(ctx).WithArguments("office").WithTimeout(30 * time.Second).Should(BeTrue())
		here, there = serve(ctx, underlayNamespace, "here", 0), serve(ctx, underlayNamespace, "there", 1)
	}, NodeTimeout(4*time.Minute))

	It("gives pods addresses of the physical network", Label(smoke), func() {
		for _, pod := range []*corev1.Pod{here, there} {
			for _, a := range cluster.PodAddrs(pod) {
				Expect(slices.ContainsFunc([]string{"172.28.0.0/24", "fd00:172:28::/64"}, func(cidr string) bool {
					return netip.MustParsePrefix(cidr).Contains(a)
				})).To(BeTrue(), a.String())
			}
			Expect(pod.Annotations).To(HaveKeyWithValue(kubeovnv1.AnnotationProviderNetwork.Key(), underlayProvider))
			Expect(pod.Annotations).To(HaveKeyWithValue(kubeovnv1.AnnotationVlanID.Key(), "0"))
		}
	})

	It("connects pods on different nodes", Label(smoke), func(ctx SpecContext) {
		expectReach(ctx, here, there)
		expectReach(ctx, there, here)
	}, SpecTimeout(time.Minute))

	It("connects pods with a host behind the physical router, in both directions", Label(smoke), func(ctx SpecContext) {
		for _, pod := range []*corev1.Pod{here, there} {
			for _, a := range cluster.PodAddrs(pod) {
				expectSeen(ctx, pod, a, a)
				Eventually(fetchFrom).WithContext(ctx).WithArguments(origin(fromOutside), netip.AddrPortFrom(a, cluster.HTTPPort), "/hostname").
					WithTimeout(20 * time.Second).Should(Equal(pod.Name))
			}
		}
	}, SpecTimeout(2*time.Minute))

	It("reaches the API server by its Service", func(ctx SpecContext) {
		api := &corev1.Service{}
		Expect(suite.Objects.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}, api)).To(Succeed())
		Eventually(func() error {
			_, err := suite.Cluster.Exec(ctx, here, "timeout", "3", "bash", "-c", `exec 3<>"/dev/tcp/$1/443"`, "connect", api.Spec.ClusterIP)
			return err
		}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
	}, SpecTimeout(time.Minute))

	It("applies a NetworkPolicy to packets from the physical network", Label(smoke), func(ctx SpecContext) {
		policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: underlayNamespace, Name: "only-here"}}
		policy.Spec.PodSelector.MatchLabels = map[string]string{"app": "there"}
		policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
			PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "here"}},
		}}}}
		Expect(suite.Objects.Create(ctx, policy)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { deleteObjects(ctx, policy) }, NodeTimeout(time.Minute))
		for _, a := range cluster.PodAddrs(there) {
			to := netip.AddrPortFrom(a, cluster.HTTPPort)
			Eventually(fetchFrom).WithContext(ctx).WithArguments(origin(fromOutside), to, "/hostname").WithTimeout(20 * time.Second).Should(BeEmpty())
			Expect(fetchFrom(ctx, fromPod(here), to, "/hostname")).To(Equal("there"))
			expectSeen(ctx, there, a, a)
		}
	}, SpecTimeout(2*time.Minute))

	It("moves its pods to another VLAN", func(ctx SpecContext) {
		setID(ctx, vlan, 30)
		DeferCleanup(func(ctx SpecContext) { setID(ctx, vlan, 0) }, NodeTimeout(time.Minute))
		for _, a := range cluster.PodAddrs(here) { // the router does not receive the VLAN
			to := netip.AddrPortFrom(a, cluster.HTTPPort)
			Eventually(fetchFrom).WithContext(ctx).WithArguments(origin(fromOutside), to, "/hostname").WithTimeout(20 * time.Second).Should(BeEmpty())
		}
		Eventually(func() []string { return unanswered(ctx, here, there) }).WithContext(ctx).WithTimeout(20 * time.Second).Should(BeEmpty())
		Eventually(func(g Gomega) {
			pod := &corev1.Pod{}
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(here), pod)).To(Succeed())
			g.Expect(pod.Annotations).To(HaveKeyWithValue(kubeovnv1.AnnotationVlanID.Key(), "30"))
		}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
	}, SpecTimeout(2*time.Minute))

	It("starts pods when their gateway answers", func(ctx SpecContext) {
		silent := subnet.DeepCopy()
		silent.Name = "silent"
		silent.Spec = kubeovnv1.SubnetSpec{
			CIDRBlock: "172.29.0.0/24,fd00:172:29::/64", Gateway: "172.29.0.1,fd00:172:29::1", Vlan: "silent", Namespaces: []string{silentNamespace},
		}
		other := &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: "silent"}, Spec: kubeovnv1.VlanSpec{ID: 31, Provider: underlayProvider}}
		makeNamespace(ctx, silentNamespace)
		DeferCleanup(func(ctx SpecContext) {
			removePods(ctx, silentNamespace)
			deleteObjects(ctx, silent)
			deleteObjects(ctx, other)
			deleteNamespace(ctx, silentNamespace)
		}, NodeTimeout(3*time.Minute))
		Expect(suite.Objects.Create(ctx, other)).To(Succeed())
		Expect(suite.Objects.Create(ctx, silent)).To(Succeed())
		Eventually(inForce).WithContext(ctx).WithArguments("silent").WithTimeout(30 * time.Second).Should(BeTrue())
		pod := cluster.Server(silentNamespace, "waits", suite.Workers[0])
		Expect(suite.Objects.Create(ctx, pod)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(silent), silent)).To(Succeed())
			g.Expect(silent.Status.Conditions).To(ContainElement(And(HaveField("Type", kubeovnv1.ConditionGatewayAnswers),
				HaveField("Message", ContainSubstring("gateway 172.29.0.1,fd00:172:29::1 does not answer")))))
		}).WithContext(ctx).WithTimeout(45 * time.Second).Should(Succeed())
		base := silent.DeepCopy()
		silent.Spec.DisableGatewayCheck = true
		Expect(suite.Objects.Patch(ctx, silent, client.MergeFrom(base))).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
			g.Expect(pod.Status.PodIP).NotTo(BeEmpty()) // the kubelet's probes do not reach this VLAN
		}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
	}, SpecTimeout(4*time.Minute))

	It("stays while it is used, and gives the interface back", func(ctx SpecContext) {
		Expect(suite.Objects.Delete(ctx, provider)).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(provider), provider)).To(Succeed())
			g.Expect(provider.Status.OwnConditions()).To(ContainElement(HaveField("Message", ContainSubstring("deleted when no Vlan uses it: office"))))
		}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
		expectReach(ctx, here, there)
		removePods(ctx, underlayNamespace)
		deleteObjects(ctx, subnet)
		deleteObjects(ctx, vlan)
		deleteObjects(ctx, provider)
		for _, node := range suite.Workers {
			Eventually(func() string { return exec(ctx, node, "ip", "-o", "link") }).WithContext(ctx).WithTimeout(30*time.Second).
				ShouldNot(ContainSubstring("br-"+underlayProvider), node)
		}
		forgotten(ctx, underlayProvider)
	}, SpecTimeout(4*time.Minute))
})

// setID changes the tag of a Vlan.
func setID(ctx context.Context, vlan *kubeovnv1.Vlan, id int) {
	GinkgoHelper()
	Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(vlan), vlan)).To(Succeed())
	base := vlan.DeepCopy()
	vlan.Spec.ID = id
	Expect(suite.Objects.Patch(ctx, vlan, client.MergeFrom(base))).To(Succeed())
}
