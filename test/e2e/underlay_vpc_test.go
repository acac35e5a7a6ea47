// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net"
	"net/netip"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/hack/lab/topology"
	"github.com/kiln-net/kiln/test/cluster"
)

// The VPC has an underlay subnet on a VLAN of the lab, and an overlay subnet.
var _ = Describe("an underlay subnet of a custom VPC", Label("underlay", physical), Ordered, ContinueOnFailure, func() {
	const vpc, overlay = "tenant", "tenant-overlay"
	vlan := topology.VLANs[1]
	provider := &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: underlayProvider}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth2"}}
	var here, there, near, far, other *corev1.Pod
	var service *corev1.Service

	BeforeAll(func(ctx SpecContext) {
		network := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: vpc}, Spec: kubeovnv1.VpcSpec{Namespaces: []string{vlan.Name, overlay}}}
		inside := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: overlay}, Spec: kubeovnv1.SubnetSpec{
			Vpc: vpc, CIDRBlock: "10.31.0.0/24,fd00:10:31::/120", Namespaces: []string{overlay},
		}}
		Expect(suite.Objects.Create(ctx, network)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			removePods(ctx, overlay)
			deleteObjects(ctx, inside)
			deleteNamespace(ctx, overlay)
			deleteNamespace(ctx, overlayNamespace)
			deleteObjects(ctx, network)
		}, NodeTimeout(4*time.Minute))
		Expect(suite.Objects.Create(ctx, inside)).To(Succeed())
		connectVLANs(ctx, provider, vlan)
		changeSubnet(ctx, vlan.Name, func(spec *kubeovnv1.SubnetSpec) { spec.Vpc = vpc })
		makeNamespace(ctx, overlay)
		makeNamespace(ctx, overlayNamespace)
		here, there = serve(ctx, vlan.Name, "here", 0), serve(ctx, vlan.Name, "there", 1)
		near, far, other = serve(ctx, overlay, "near", 0), serve(ctx, overlay, "far", 1), serve(ctx, overlayNamespace, "other", 0)
		service = createService(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: overlay, Name: "far"},
			Spec: corev1.ServiceSpec{
				Selector: map[string]string{"app": "far"}, IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
				Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(cluster.HTTPPort)}},
			},
		})
	}, NodeTimeout(8*time.Minute))

	physical := func(ctx context.Context) {
		GinkgoHelper()
		expectReach(ctx, here, there)
		for _, a := range cluster.PodAddrs(there) {
			Expect(answerOf(ctx, fromNode(vlan.HostName()), netip.AddrPortFrom(a, cluster.HTTPPort))).To(Equal("there"))
		}
	}

	It("connects its pods with the physical network, and not with the overlay", func(ctx SpecContext) {
		physical(ctx)
		apart(ctx, here, far, near)
		apart(ctx, near, here, there)
	}, SpecTimeout(2*time.Minute))

	It("connects its pods with the overlay and the Services of the VPC, with u2oInterconnection", func(ctx SpecContext) {
		changeSubnet(ctx, vlan.Name, func(spec *kubeovnv1.SubnetSpec) { spec.U2OInterconnection = true })
		for _, pod := range []*corev1.Pod{near, far} {
			expectReach(ctx, here, pod)
			expectReach(ctx, pod, here)
		}
		for _, ip := range service.Spec.ClusterIPs {
			url := "http://" + net.JoinHostPort(ip, "80") + "/hostname"
			Eventually(curl).WithContext(ctx).WithArguments(here, url).WithTimeout(20 * time.Second).Should(Equal("far"))
		}
		physical(ctx)
		apart(ctx, near, other, other) // a pod of another VPC
	}, SpecTimeout(4*time.Minute))

	It("has the VPC's router as its gateway, with logicalGateway", func(ctx SpecContext) {
		changeSubnet(ctx, vlan.Name, func(spec *kubeovnv1.SubnetSpec) {
			spec.U2OInterconnection, spec.LogicalGateway, spec.Gateway = false, true, "172.28.30.250,fd00:172:28:30::fa"
		})
		late := serve(ctx, vlan.Name, "late", 1)
		expectReach(ctx, late, near)
		expectReach(ctx, near, late)
		expectReach(ctx, here, late)
		apart(ctx, late, other, other) // a pod of another VPC
	}, SpecTimeout(4*time.Minute))
})
