// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net/netip"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/controllers/loadbalancer"
	"github.com/kiln-net/kiln/test/cluster"
)

const balancerClass = "example.com/public"

// Static routes of the router outside take the place of BGP.
var _ = Describe("load balancers with addresses of a pool", Ordered, ContinueOnFailure, func() {
	var near *corev1.Pod // a server; another one is on the other worker
	BeforeAll(func(ctx SpecContext) {
		makeNamespace(ctx, serviceNamespace)
		DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, serviceNamespace) }, NodeTimeout(4*time.Minute))
		near = serverOf(ctx, "near", suite.Workers[0])
		serverOf(ctx, "far", suite.Workers[1])
		DeferCleanup(func(ctx SpecContext) { Expect(suite.Cluster.ApplyOVNCluster(ctx, asInstalled())).To(Succeed()) }, NodeTimeout(time.Minute))
		changeCluster(ctx, func(spec *v1alpha1.OVNClusterSpec) {
			spec.Services.LoadBalancerPools = []v1alpha1.LoadBalancerPool{{
				Class: balancerClass, Addresses: []string{"203.0.113.0/29", "2001:db8:100::/125"}, Namespaces: []string{serviceNamespace},
			}}
		})
	}, NodeTimeout(3*time.Minute))

	It("are reached from outside through every node, and from pods and nodes", Label(smoke), func(ctx SpecContext) {
		s, fronts := balancerOf(ctx, "public", func(*corev1.ServiceSpec) {})
		for _, front := range fronts {
			for _, node := range []string{suite.Workers[0], suite.Workers[1], controlPlane()} {
				routed(ctx, front.Addr(), node)
				servedBy(ctx, fromOutside, front, "near", "far")
			}
			servedBy(ctx, fromPod(near), front, "near", "far")
			servedBy(ctx, fromNode(suite.Workers[0]), front, "near", "far")
		}
		// A Service that requests an address of another one waits, and gets it when that one changes its type.
		other := serviceOf(ctx, "other", func(spec *corev1.ServiceSpec) {
			spec.Type, spec.LoadBalancerClass, spec.LoadBalancerIP = corev1.ServiceTypeLoadBalancer, new(balancerClass), s.Status.LoadBalancer.Ingress[0].IP
			spec.Selector = map[string]string{"name": "far"}
		})
		Eventually(warnings).WithContext(ctx).WithArguments(serviceNamespace, other.Name).WithTimeout(30 * time.Second).
			Should(ContainElement(ContainSubstring("is not available: another Service has it")))
		_, err := suite.Cluster.CoreV1().Services(s.Namespace).Patch(ctx, s.Name, types.MergePatchType,
			[]byte(`{"spec":{"type":"ClusterIP","loadBalancerClass":null}}`), metav1.PatchOptions{})
		Expect(err).NotTo(HaveOccurred())
		servedBy(ctx, fromOutside, fronts[0], "far")
	}, SpecTimeout(6*time.Minute))

	It("spread over two nodes by the router, with the addresses of clients", func(ctx SpecContext) {
		_, fronts := balancerOf(ctx, "local", func(spec *corev1.ServiceSpec) {
			spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		})
		for _, front := range fronts {
			routed(ctx, front.Addr(), suite.Workers...)
			servedBy(ctx, fromOutside, front, "near", "far")
			client, _ := cluster.InFamilyOf(suite.Lab.OutsideAddresses(), front.Addr())
			Expect(fetchFrom(ctx, fromOutside, front, "/clientip")).To(HavePrefix(strings.Trim(netip.AddrPortFrom(client, 0).String(), "0")))
			silent(ctx, fromOutside, front, func() { // at a node without an endpoint
				routed(ctx, front.Addr(), suite.Workers...)
				opens(ctx, fromOutside, front)()
				routed(ctx, front.Addr(), controlPlane())
			})
		}
	}, SpecTimeout(6*time.Minute))
})

// balancerOf creates a dual-stack Service with the class of the pool, and waits for its addresses, one of each family. It returns their fronts.
func balancerOf(ctx context.Context, name string, change func(*corev1.ServiceSpec)) (*corev1.Service, []netip.AddrPort) {
	GinkgoHelper()
	s := serviceOf(ctx, name, func(spec *corev1.ServiceSpec) {
		spec.Type, spec.LoadBalancerClass, spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer, new(balancerClass), new(false)
		change(spec)
	})
	var fronts []netip.AddrPort
	Eventually(func(g Gomega) {
		var err error
		s, err = suite.Cluster.CoreV1().Services(s.Namespace).Get(ctx, s.Name, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(s.Status.Conditions).To(ContainElement(HaveField("Reason", loadbalancer.ReasonAssigned)))
		g.Expect(s.Status.LoadBalancer.Ingress).To(HaveLen(len(s.Spec.IPFamilies)))
	}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
	for _, i := range s.Status.LoadBalancer.Ingress {
		fronts = append(fronts, netip.AddrPortFrom(netip.MustParseAddr(i.IP), 80))
	}
	return s, fronts
}

// routed adds routes by nodes to the router outside, which spreads connections over them by their ports. It removes them when the spec ends.
func routed(ctx context.Context, address netip.Addr, nodes ...string) {
	GinkgoHelper()
	family, sysctl := "-4", "net.ipv4.fib_multipath_hash_policy=1"
	if address.Is6() {
		family, sysctl = "-6", "net.ipv6.fib_multipath_hash_policy=1"
	}
	exec(ctx, outsideRouter, "sysctl", "-w", sysctl)
	_, _ = suite.Node.Exec(ctx, outsideRouter, "ip", family, "route", "del", address.String()) // the route of the previous call, if any
	route := []string{"ip", family, "route", "add", address.String()}
	for _, node := range nodes {
		route = append(route, "nexthop", "via", addressOfNode(ctx, node, address).String())
	}
	exec(ctx, outsideRouter, route...)
	DeferCleanup(func(ctx SpecContext) {
		_, _ = suite.Node.Exec(ctx, outsideRouter, "ip", family, "route", "del", address.String()) // removed already, if the spec added it twice
	}, NodeTimeout(time.Minute))
}
