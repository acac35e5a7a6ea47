// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/hack/lab/topology"
	"github.com/kiln-net/kiln/test/cluster"
)

// defaultOnVLAN is the variable with which the suite installs Kiln with ovn-default on a VLAN of the lab, and the label of specs for that:
// `make underlay-default`.
const (
	defaultOnVLAN = "DEFAULT_ON_VLAN"
	ofDefault     = "underlay-default"
)

// defaultVLAN returns the VLAN of ovn-default, if it has one.
func defaultVLAN() (topology.VLAN, bool) { return topology.VLANs[1], os.Getenv(defaultOnVLAN) != "" }

// putOnVLAN changes a specification so that ovn-default is on the VLAN.
func putOnVLAN(network *v1alpha1.Network) {
	v, is := defaultVLAN()
	if !is {
		return
	}
	network.PodVlan, network.PodCIDRs = v.Name, nil
	for i, p := range v.Prefixes {
		network.PodCIDRs = append(network.PodCIDRs, p.String())
		network.PodGateways = append(network.PodGateways, v.Router()[i].Addr().String())
		network.ExcludeIPs = append(network.ExcludeIPs, fmt.Sprintf("%s..%s", v.At(1)[i].Addr(), v.At(127)[i].Addr()))
	}
}

// makeDefaultVLAN makes the ProviderNetwork and the Vlan of ovn-default.
func makeDefaultVLAN(ctx context.Context) {
	GinkgoHelper()
	v, is := defaultVLAN()
	if !is {
		return
	}
	for _, o := range []client.Object{
		&kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: underlayProvider}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth2"}},
		&kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: v.Name}, Spec: kubeovnv1.VlanSpec{ID: v.Tag, Provider: underlayProvider}},
	} {
		Expect(client.IgnoreAlreadyExists(suite.Objects.Create(ctx, o))).To(Succeed())
	}
}

var _ = Describe("ovn-default on a physical network", Label(ofDefault), Ordered, ContinueOnFailure, func() {
	const namespace, overlay = "e2e-default", "e2e-default-overlay"
	var here, there *corev1.Pod
	BeforeAll(func(ctx SpecContext) {
		for _, n := range []string{namespace, overlay} {
			makeNamespace(ctx, n)
			DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, n) }, NodeTimeout(3*time.Minute))
		}
		here, there = serve(ctx, namespace, "here", 0), serve(ctx, namespace, "there", 1)
	}, NodeTimeout(4*time.Minute))

	It("gives pods of the system and of users addresses of the network", func(ctx SpecContext) {
		v, is := defaultVLAN()
		Expect(is).To(BeTrue(), defaultOnVLAN)
		dns, err := suite.Cluster.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"})
		Expect(err).NotTo(HaveOccurred())
		Expect(dns.Items).NotTo(BeEmpty())
		for _, pod := range append(dns.Items, *here, *there) {
			addresses := cluster.PodAddrs(&pod)
			Expect(addresses).To(HaveLen(2), pod.Name)
			for _, a := range addresses {
				p := v.Prefixes[0]
				if a.Is6() {
					p = v.Prefixes[1]
				}
				Expect(p.Contains(a)).To(BeTrue(), "%s has %s", pod.Name, a)
			}
		}
	}, SpecTimeout(time.Minute))

	It("connects pods with one another, with nodes, and with hosts of the network", func(ctx SpecContext) {
		v, _ := defaultVLAN()
		expectReach(ctx, here, there)
		expectReach(ctx, there, here)
		for _, a := range cluster.PodAddrs(there) {
			to := netip.AddrPortFrom(a, cluster.HTTPPort)
			for _, from := range []origin{fromOutside, fromNode(v.HostName()), fromNode(suite.Workers[0]), fromNode(suite.Workers[1])} {
				Expect(answerOf(ctx, from, to)).To(Equal("there"))
			}
		}
	}, SpecTimeout(3*time.Minute))

	It("connects pods with Services, DNS and the API server", func(ctx SpecContext) {
		expectServices(ctx, there, here)
		Eventually(curl).WithContext(ctx).WithArguments(here, "--insecure", "--output", "/dev/null", "--write-out", "%{http_code}",
			"https://kubernetes.default.svc.cluster.local/version").WithTimeout(30 * time.Second).Should(Equal("200"))
	}, SpecTimeout(4*time.Minute))

	It("leaves room for overlay subnets", func(ctx SpecContext) {
		subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: overlay}, Spec: kubeovnv1.SubnetSpec{
			CIDRBlock: "10.33.0.0/24,fd00:10:33::/120", Namespaces: []string{overlay}, NATOutgoing: true,
		}}
		Expect(suite.Objects.Create(ctx, subnet)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { removePods(ctx, overlay); deleteObjects(ctx, subnet) }, NodeTimeout(2*time.Minute))
		Eventually(inForce).WithContext(ctx).WithArguments(overlay).WithTimeout(30 * time.Second).Should(BeTrue())
		near, far := serve(ctx, overlay, "near", 0), serve(ctx, overlay, "far", 1)
		expectReach(ctx, near, far)
		expectReach(ctx, far, near)
		Eventually(curl).WithContext(ctx).WithArguments(near, "--insecure", "--output", "/dev/null", "--write-out", "%{http_code}",
			"https://"+netip.AddrPortFrom(addressOfNode(ctx, controlPlane(), cluster.PodAddrs(near)[0]), topology.APIServerPort).String()+"/version").
			WithTimeout(30 * time.Second).Should(Equal("200"))
	}, SpecTimeout(3*time.Minute))
})
