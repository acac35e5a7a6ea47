// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
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

// bgpEgress are the addresses of an EgressAddress. They are in no network of the lab, so answers arrive by BGP only.
var bgpEgress = []netip.Addr{netip.MustParseAddr("203.0.113.60"), netip.MustParseAddr("2001:db8:cafe::60")}

// egress adds the specs of EgressAddresses.
func (b *bgpLab) egress() {
	It("announces an egress address from the node that has it, and follows it", func(ctx SpecContext) {
		e := bgpEgressOn(ctx)
		active := slices.Index(suite.Workers, e.Status.Node)
		for _, a := range bgpEgress {
			b.frr.reaches(ctx, host(a), active)
		}
		pod := bgpSelected(ctx, suite.Workers[1-active])
		for _, like := range cluster.PodAddrs(pod) {
			source, _ := cluster.InFamilyOf(bgpEgress, like)
			expectSeen(ctx, pod, like, source)
		}

		By("cordoning the node")
		cordon(ctx, suite.Workers[active], true)
		DeferCleanup(func(ctx SpecContext) { cordon(ctx, suite.Workers[active], false) }, NodeTimeout(time.Minute))
		for _, a := range bgpEgress {
			b.frr.reaches(ctx, host(a), 1-active)
		}
		for _, like := range cluster.PodAddrs(pod) {
			source, _ := cluster.InFamilyOf(bgpEgress, like)
			expectSeen(ctx, pod, like, source)
		}

		By("removing the annotation")
		setAnnouncement(ctx, e, string(kubeovnv1.AnnounceNone))
		for _, a := range bgpEgress {
			b.frr.reaches(ctx, host(a))
		}
	}, SpecTimeout(5*time.Minute))

	It("leads answers to the newest node of an egress address while the former one still announces it", func(ctx SpecContext) {
		e := bgpEgressOn(ctx)
		active := slices.Index(suite.Workers, e.Status.Node)
		pod := bgpSelected(ctx, suite.Workers[1-active])
		for _, a := range bgpEgress {
			b.frr.reaches(ctx, host(a), active)
		}
		restore := cutOff(ctx, []string{"tcp sport 6443"}, []string{"tcp dport 6443"}, suite.Workers[active])
		for _, a := range bgpEgress {
			Eventually(b.frr.hops).WithContext(ctx).WithArguments(host(a)).WithTimeout(2*time.Minute).WithPolling(100*time.Millisecond).
				Should(Equal(hopsOf(host(a), 1-active)), a.String())
			Expect(b.frr.paths(ctx, a)).To(Equal(2), "routes of both nodes to %s", a)
		}
		for _, like := range cluster.PodAddrs(pod) {
			source, _ := cluster.InFamilyOf(bgpEgress, like)
			for range 10 { // each connection may have another hash
				expectSeen(ctx, pod, like, source)
			}
		}
		restore(ctx)
		for _, a := range bgpEgress {
			Eventually(b.frr.paths).WithContext(ctx).WithArguments(a).WithTimeout(2*time.Minute).Should(Equal(1), a.String())
			b.frr.reaches(ctx, host(a), 1-active)
		}
	}, SpecTimeout(8*time.Minute))

	It("announces the OvnEip of a RouterLBRule from all nodes, which serve it", func(ctx SpecContext) {
		subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "e2e-bgp-eips"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.121.0.0/24,fd00:10:121::/120"}}
		eip := &kubeovnv1.OvnEip{
			ObjectMeta: metav1.ObjectMeta{Name: bgpNamespace, Annotations: map[string]string{kubeovnv1.AnnotationBGP.Key(): "true"}},
			Spec:       kubeovnv1.OvnEipSpec{ExternalSubnet: subnet.Name},
		}
		rule := &kubeovnv1.RouterLBRule{ObjectMeta: metav1.ObjectMeta{Name: bgpNamespace}}
		rule.Spec.OvnEip, rule.Spec.Namespace, rule.Spec.Selector = eip.Name, bgpNamespace, []string{"app:web"}
		rule.Spec.Ports = []kubeovnv1.LBRulePort{{Port: 80, TargetPort: cluster.HTTPPort}}
		applied(ctx, subnet, eip, rule)
		Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(eip), eip)).To(Succeed())
		for _, text := range []string{eip.Status.V4IP, eip.Status.V6IP} {
			a := netip.MustParseAddr(text)
			b.frr.reaches(ctx, host(a), 0, 1)
			servedBy(ctx, fromOutside, netip.AddrPortFrom(a, 80), b.pods[0].Name, b.pods[1].Name)
		}
		setAnnouncement(ctx, eip, string(kubeovnv1.AnnounceNone))
		for _, text := range []string{eip.Status.V4IP, eip.Status.V6IP} {
			b.frr.reaches(ctx, host(netip.MustParseAddr(text)))
		}
	}, SpecTimeout(4*time.Minute))
}

// bgpEgressOn creates an announced EgressAddress for pods with app: fixed, which both workers can have, until the spec ends.
func bgpEgressOn(ctx context.Context) *kubeovnv1.EgressAddress {
	GinkgoHelper()
	for _, node := range suite.Workers[:2] {
		label(ctx, node, "yes")
		DeferCleanup(func(ctx SpecContext) { label(ctx, node, "") }, NodeTimeout(time.Minute))
	}
	e := &kubeovnv1.EgressAddress{
		ObjectMeta: metav1.ObjectMeta{Name: bgpNamespace, Annotations: map[string]string{kubeovnv1.AnnotationBGP.Key(): "true"}},
		Spec: kubeovnv1.EgressAddressSpec{
			NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: bgpNamespace}},
			PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "fixed"}},
			NodeSelector:      &metav1.LabelSelector{MatchLabels: map[string]string{gatewayLabel: "yes"}},
			Addresses:         []string{bgpEgress[0].String(), bgpEgress[1].String()},
		},
	}
	applied(ctx, e)
	Eventually(func(g Gomega) {
		g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(e), e)).To(Succeed())
		g.Expect(e.Status.Standby).NotTo(BeEmpty())
		g.Expect(e.Status.Conditions).To(ContainElement(And(HaveField("Type", kubeovnv1.ConditionAnnounced), HaveField("Status", metav1.ConditionTrue))))
	}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
	return e
}

// bgpSelected runs a pod of the EgressAddress until the spec ends.
func bgpSelected(ctx context.Context, node string) *corev1.Pod {
	GinkgoHelper()
	pod := cluster.Server(bgpNamespace, "fixed", node)
	pod.Labels = map[string]string{"app": "fixed"}
	ready, err := suite.Cluster.Run(ctx, pod)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { deleteObjects(ctx, ready) }, NodeTimeout(2*time.Minute))
	return ready
}

// setAnnouncement sets the annotation of an object.
func setAnnouncement(ctx context.Context, o client.Object, value string) {
	GinkgoHelper()
	Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
	base := o.DeepCopyObject().(client.Object)
	o.GetAnnotations()[kubeovnv1.AnnotationBGP.Key()] = value
	Expect(suite.Objects.Patch(ctx, o, client.MergeFrom(base))).To(Succeed())
}

// paths returns the number of nodes from which FRR has a route to an address, used or not. Nodes may have a session of each family.
func (f *frr) paths(ctx context.Context, a netip.Addr) (int, error) {
	family := "ipv4"
	if a.Is6() {
		family = "ipv6"
	}
	out, err := f.vtysh(ctx, fmt.Sprintf("show bgp %s unicast %s json", family, host(a)))
	if err != nil {
		return 0, err
	}
	var route struct {
		Paths []struct {
			Peer struct {
				RouterID string `json:"routerId"`
			} `json:"peer"`
		} `json:"paths"`
	}
	if err := json.Unmarshal([]byte(out), &route); err != nil {
		return 0, fmt.Errorf("decode %q: %w", out, err)
	}
	nodes := map[string]bool{}
	for _, p := range route.Paths {
		nodes[p.Peer.RouterID] = true
	}
	return len(nodes), nil
}
