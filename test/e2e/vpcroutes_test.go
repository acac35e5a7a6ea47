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
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

// Addresses in no subnet of the VPC. Both appliances have them, so the server's name in an answer shows the next hop of a packet.
var (
	beyond = []netip.Addr{netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("2001:db8:51::9")}
	shared = []netip.Addr{netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8:203::9")}
)

// expectAnswers waits until a server answers a pod at both addresses beyond the VPC.
func expectAnswers(ctx context.Context, from *corev1.Pod, server string) {
	GinkgoHelper()
	for _, a := range beyond {
		Eventually(reached).WithContext(ctx).WithArguments(from, a.String()).WithTimeout(20*time.Second).Should(Equal(server), "%s to %s", from.Name, a)
	}
}

// changeVpc changes the spec of a VPC.
func changeVpc(ctx context.Context, name string, change func(*kubeovnv1.VpcSpec)) {
	GinkgoHelper()
	vpc := &kubeovnv1.Vpc{}
	Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: name}, vpc)).To(Succeed())
	base := vpc.DeepCopy()
	change(&vpc.Spec)
	Expect(suite.Objects.Patch(ctx, vpc, client.MergeFrom(base))).To(Succeed())
}

// annotate sets an annotation of a running pod, or removes it when value is "".
func annotate(ctx context.Context, pod *corev1.Pod, key, value string) {
	GinkgoHelper()
	base := pod.DeepCopy()
	if value == "" {
		delete(pod.Annotations, key)
	} else {
		pod.Annotations[key] = value
	}
	Expect(suite.Objects.Patch(ctx, pod, client.MergeFrom(base))).To(Succeed())
}

// routesOfOnePod checks the annotation north_gateway: it changes the next hop of its pod, but of no other pod.
func routesOfOnePod(ctx context.Context, office, server *corev1.Pod) {
	GinkgoHelper()
	By("to a next hop of the pod's own")
	key := kubeovnv1.AnnotationNorthGateway.Key()
	annotate(ctx, office, key, "10.53.0.6,fd00:10:53::6")
	expectAnswers(ctx, office, "inspected-second")
	expectAnswers(ctx, server, "inspected-appliance")
	annotate(ctx, office, key, "")
	expectAnswers(ctx, office, "inspected-appliance")
}

// routesByTableAndSource checks static routes of a table, several next hops of one prefix, and routes by source.
func routesByTableAndSource(ctx context.Context, office, server *corev1.Pod) {
	GinkgoHelper()
	By("by the route table of the subnet")
	changeVpc(ctx, "inspected", func(s *kubeovnv1.VpcSpec) {
		s.StaticRoutes = append(s.StaticRoutes,
			&kubeovnv1.StaticRoute{CIDR: "198.51.100.0/24", NextHopIP: "10.53.0.6", RouteTable: "guarded"},
			&kubeovnv1.StaticRoute{CIDR: "2001:db8:51::/64", NextHopIP: "fd00:10:53::6", RouteTable: "guarded"},
			&kubeovnv1.StaticRoute{CIDR: "203.0.113.0/24", NextHopIP: "10.53.0.5"}, &kubeovnv1.StaticRoute{CIDR: "203.0.113.0/24", NextHopIP: "10.53.0.6"},
			&kubeovnv1.StaticRoute{CIDR: "2001:db8:203::/64", NextHopIP: "fd00:10:53::5"}, &kubeovnv1.StaticRoute{CIDR: "2001:db8:203::/64", NextHopIP: "fd00:10:53::6"},
		)
	})
	changeSubnet(ctx, "server-net", func(s *kubeovnv1.SubnetSpec) { s.RouteTable = "guarded" })
	expectAnswers(ctx, server, "inspected-second")
	expectAnswers(ctx, office, "inspected-appliance")
	for _, a := range addressesOf(office) {
		Expect(reached(ctx, server, a)).To(Equal("inspected-office"), "the subnets of the VPC are in every table")
	}
	By("over several next hops")
	for _, a := range shared {
		servedBy(ctx, fromPod(office), netip.AddrPortFrom(a, cluster.HTTPPort), "inspected-appliance", "inspected-second")
	}
	By("by the source of packets")
	changeVpc(ctx, "inspected", func(s *kubeovnv1.VpcSpec) {
		s.StaticRoutes = append(s.StaticRoutes,
			&kubeovnv1.StaticRoute{Policy: kubeovnv1.RouteBySource, CIDR: "10.52.0.10", NextHopIP: "10.53.0.6"},
			&kubeovnv1.StaticRoute{Policy: kubeovnv1.RouteBySource, CIDR: "fd00:10:52::10", NextHopIP: "fd00:10:53::6"},
		)
	})
	expectAnswers(ctx, office, "inspected-second")
}

// policiesThatDecide checks policy routes that drop and allow: the highest priority decides.
func policiesThatDecide(ctx context.Context, office, server *corev1.Pod) {
	GinkgoHelper()
	By("not at all, where a policy drops packets")
	decide := func(policy *kubeovnv1.PolicyRoute) {
		GinkgoHelper()
		changeVpc(ctx, "inspected", func(s *kubeovnv1.VpcSpec) { s.PolicyRoutes = append(s.PolicyRoutes, policy) })
	}
	decide(&kubeovnv1.PolicyRoute{
		Priority: 30100, Match: `inport == "inspected-office-net" && (ip4.dst == 198.51.100.9 || ip6.dst == 2001:db8:51::9)`, Action: kubeovnv1.PolicyRouteDrop,
	})
	var targets []target
	for _, a := range beyond {
		targets = append(targets, target{tcp, netip.AddrPortFrom(a, cluster.HTTPPort)})
	}
	apartAt(ctx, office, server, targets...)
	By("where a policy of a greater priority allows them")
	decide(&kubeovnv1.PolicyRoute{Priority: 30200, Match: `inport == "inspected-office-net" && tcp.dst == 8080`, Action: kubeovnv1.PolicyRouteAllow})
	expectAnswers(ctx, office, "inspected-second")
}
