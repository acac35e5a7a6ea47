// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

// overlayNamespace has the overlay pods.
const overlayNamespace = "interconnect"

// routerFailover is the time after which another node has the router's port of a node that failed (docs/user/underlay.md).
const routerFailover = 4 * time.Second

// interconnectNamespaces are the pods' namespaces: of the sample's underlay subnet, and of the default subnet.
var interconnectNamespaces = []string{underlayNamespace, overlayNamespace}

var _ = Describe("an interconnected underlay subnet", Label("underlay"), Ordered, ContinueOnFailure, func() {
	var here, there, near, far *corev1.Pod
	services := map[string]*corev1.Service{}
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "office"}}

	BeforeAll(func(ctx SpecContext) {
		for _, namespace := range interconnectNamespaces {
			makeNamespace(ctx, namespace)
		}
		DeferCleanup(func(ctx SpecContext) {
			for _, namespace := range interconnectNamespaces {
				removePods(ctx, namespace)
			}
			deleteObjects(ctx, subnet)
			deleteObjects(ctx, &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: underlayVlan}})
			deleteObjects(ctx, &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: underlayProvider}})
			for _, namespace := range interconnectNamespaces {
				deleteNamespace(ctx, namespace)
			}
		}, NodeTimeout(6*time.Minute))
		applySample(ctx, "subnet_underlay.yaml")
		Eventually(inForce).WithContext(ctx).WithArguments("office").WithTimeout(time.Minute).Should(BeTrue())
		here, there = serve(ctx, underlayNamespace, "here", 0), serve(ctx, underlayNamespace, "there", 1)
		near, far = serve(ctx, overlayNamespace, "near", 0), serve(ctx, overlayNamespace, "far", 1)
		dual := corev1.IPFamilyPolicyPreferDualStack
		for _, pod := range []*corev1.Pod{there, far} {
			services[pod.Name] = createService(ctx, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
				Spec: corev1.ServiceSpec{
					Selector: map[string]string{"app": pod.Name}, IPFamilyPolicy: &dual,
					Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(cluster.HTTPPort)}},
				},
			})
		}
	}, NodeTimeout(6*time.Minute))

	connected := func(ctx context.Context) {
		GinkgoHelper()
		for _, underlay := range []*corev1.Pod{here, there} {
			for _, overlay := range []*corev1.Pod{near, far} {
				expectReach(ctx, underlay, overlay)
				expectReach(ctx, overlay, underlay)
			}
		}
		expectReach(ctx, here, there)
		for _, from := range []*corev1.Pod{here, near} {
			for name, service := range services {
				for _, ip := range service.Spec.ClusterIPs {
					url := "http://" + net.JoinHostPort(ip, "80") + "/hostname"
					Eventually(curl).WithContext(ctx).WithArguments(from, url).WithTimeout(20*time.Second).Should(Equal(name), "from %s to %s", from.Name, ip)
				}
			}
		}
		Eventually(curl).WithContext(ctx).WithArguments(here, "--insecure", "--output", "/dev/null", "--write-out", "%{http_code}",
			"https://kubernetes.default.svc.cluster.local/version").WithTimeout(30 * time.Second).Should(Equal("200"))
	}

	It("connects running pods with overlay pods, Services and DNS, in both directions", Label(smoke), func(ctx SpecContext) {
		apart(ctx, here, far, near) // in each family. Overlay pods may reach underlay pods through nodes and the physical router
		changeSubnet(ctx, "office", func(spec *kubeovnv1.SubnetSpec) { spec.U2OInterconnection = true })
		connected(ctx)
		Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(subnet), subnet)).To(Succeed())
		Expect(subnet.Status.U2OInterconnectionVPC).To(Equal(kubeovnv1.DefaultVpc))
		for _, a := range cluster.PodAddrs(far) { // overlay pods see the addresses of underlay pods
			like, _ := cluster.InFamilyOf(cluster.PodAddrs(here), a)
			url := "http://" + netip.AddrPortFrom(a, cluster.HTTPPort).String() + "/clientip"
			client, err := netip.ParseAddrPort(curl(ctx, here, url))
			Expect(err).NotTo(HaveOccurred())
			Expect(client.Addr()).To(Equal(like))
		}
	}, SpecTimeout(4*time.Minute))

	It("leaves other traffic to the physical router", func(ctx SpecContext) {
		for _, a := range cluster.PodAddrs(here) {
			expectSeen(ctx, here, a, a)
			Expect(fetchFrom(ctx, fromOutside, netip.AddrPortFrom(a, cluster.HTTPPort), "/hostname")).To(Equal("here"))
		}
		fresh := serve(ctx, underlayNamespace, "fresh", 1)
		expectReach(ctx, fresh, near)
		expectReach(ctx, near, fresh)
	}, SpecTimeout(2*time.Minute))

	It("applies a NetworkPolicy to packets from the overlay", func(ctx SpecContext) {
		policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: underlayNamespace, Name: "only-near"}}
		policy.Spec.PodSelector.MatchLabels = map[string]string{"app": "there"}
		policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{
			NamespaceSelector: &metav1.LabelSelector{}, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "near"}},
		}}}}
		Expect(suite.Objects.Create(ctx, policy)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { deleteObjects(ctx, policy) }, NodeTimeout(time.Minute))
		for _, a := range cluster.PodAddrs(there) {
			to := netip.AddrPortFrom(a, cluster.HTTPPort)
			Eventually(fetchFrom).WithContext(ctx).WithArguments(fromPod(far), to, "/hostname").WithTimeout(20 * time.Second).Should(BeEmpty())
			Expect(fetchFrom(ctx, fromPod(near), to, "/hostname")).To(Equal("there"))
		}
		expectReach(ctx, there, far)
	}, SpecTimeout(2*time.Minute))

	It("ends with the field", func(ctx SpecContext) {
		changeSubnet(ctx, "office", func(spec *kubeovnv1.SubnetSpec) { spec.U2OInterconnection = false })
		apart(ctx, here, far, near)
		for _, a := range cluster.PodAddrs(here) {
			expectSeen(ctx, here, a, a)
		}
	}, SpecTimeout(2*time.Minute))

	// The gateway is an address that no router of the physical network has.
	It("has OVN's router as its gateway, with logicalGateway", func(ctx SpecContext) {
		changeSubnet(ctx, "office", func(spec *kubeovnv1.SubnetSpec) {
			spec.LogicalGateway, spec.NATOutgoing, spec.Gateway = true, true, "172.28.0.250,fd00:172:28::fa"
		})
		connected(ctx)
		for _, a := range cluster.PodAddrs(there) {
			for _, node := range suite.Workers {
				Eventually(fetchFrom).WithContext(ctx).WithArguments(fromNode(node), netip.AddrPortFrom(a, cluster.HTTPPort), "/hostname").
					WithTimeout(20*time.Second).Should(Equal("there"), "from %s to %s", node, a)
			}
			expectSeen(ctx, here, a, addressOfNode(ctx, suite.Workers[0], a)) // natOutgoing
		}
	}, SpecTimeout(4*time.Minute))

	// Its router is first on worker-1: the names of the subnet and of the nodes give their order.
	It("has its router on another node when the Open vSwitch of the first one dies", Label(timed, physical, disruptive, mayRestart), func(ctx SpecContext) {
		first, second := suite.Workers[0], suite.Workers[1] // the pods there and far are on the second one
		Expect(routerNode(ctx, "office")).To(Equal(first))
		running := []*watch{startWatch(ctx, fromPod(there), tcpTo(far, cluster.HTTPPort)), startWatch(ctx, fromPod(far), tcpTo(there, cluster.HTTPPort))}
		DeferCleanup(func(ctx SpecContext) { reviveNode(ctx, first) }, NodeTimeout(time.Minute))
		died := time.Now()
		killNode(ctx, first)
		for _, pods := range [][]*corev1.Pod{{there, far}, {far, there}} {
			Eventually(unanswered).WithContext(ctx).WithArguments(pods[0], pods[1]).WithTimeout(time.Minute).WithPolling(100 * time.Millisecond).Should(BeEmpty())
			within(died, routerFailover, "node of the router dead → "+pods[0].Name+" reaches "+pods[1].Name)
		}
		Expect(routerNode(ctx, "office")).To(Equal(second))
		reviveNode(ctx, first)
		Eventually(routerNode).WithContext(ctx).WithArguments("office").WithTimeout(time.Minute).Should(Equal(first))
		connected(ctx)
		for _, w := range running {
			Expect(w.end(ctx).losses()).To(BeEmpty(), "connections of the time before")
		}
	}, SpecTimeout(6*time.Minute))
})

// routerNode returns the node on which OVN's router has the gateway port of an underlay subnet; empty if it is on none.
func routerNode(ctx context.Context, subnet string) (string, error) {
	port := "cr-" + kubeovnv1.DefaultVpc + "-" + subnet // the chassisredirect port that northd makes of the router's port
	chassis, err := ko(ctx, "sbctl", "--bare", "--columns=chassis", "find", "Port_Binding", "logical_port="+port)
	if err != nil || strings.TrimSpace(chassis) == "" {
		return "", err
	}
	node, err := ko(ctx, "sbctl", "--bare", "--columns=hostname", "list", "Chassis", strings.TrimSpace(chassis))
	return strings.TrimSpace(node), err
}
