// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/hack/lab/topology"
	"github.com/kiln-net/kiln/test/cluster"
)

// macOf returns the MAC address of an outside host.
func macOf(ctx context.Context, host string) string {
	GinkgoHelper()
	return strings.TrimSpace(exec(ctx, host, "cat", "/sys/class/net/eth0/address"))
}

// giveAddresses gives addresses to an outside host, until free is called or the spec ends.
func giveAddresses(ctx context.Context, host string, addresses ...netip.Prefix) (free func(context.Context)) {
	GinkgoHelper()
	free = func(ctx context.Context) {
		GinkgoHelper()
		for _, a := range addresses {
			exec(ctx, host, "sh", "-c", "ip address del $0 dev eth0 || true", a.String())
		}
	}
	DeferCleanup(func(ctx SpecContext) { free(ctx) }, NodeTimeout(time.Minute))
	for _, a := range addresses {
		exec(ctx, host, "ip", "address", "add", a.String(), "dev", "eth0", "nodad")
	}
	return free
}

// expectWaiting creates a pod that must not start, and waits for its warning event. The pod is deleted when the spec ends.
func expectWaiting(ctx context.Context, pod *corev1.Pod, event types.GomegaMatcher) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) { removePods(ctx, pod.Namespace, pod.Name) }, NodeTimeout(2*time.Minute))
	_, err := suite.Cluster.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	Eventually(warnings).WithContext(ctx).WithArguments(pod.Namespace, pod.Name).WithTimeout(30 * time.Second).Should(ContainElement(event))
	Expect(phaseOf(ctx, pod.Namespace, pod.Name)).To(Equal(corev1.PodPending))
}

// forgotten waits until no node has a label or the bridge of a deleted ProviderNetwork. Before, another one with its name would be ready at once, and
// interfaces return to their state, such as the MTU, of the time before it.
func forgotten(ctx context.Context, provider string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		nodes, err := suite.Cluster.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		for _, n := range nodes.Items {
			for key := range n.Labels {
				g.Expect(strings.HasPrefix(key, provider+kubeovnv1.ProviderKeySuffix)).To(BeFalse(), "%s: %s", n.Name, key)
			}
			_, err := suite.Node.Exec(ctx, n.Name, "sh", "-c", "! ip link show br-"+provider)
			g.Expect(err).NotTo(HaveOccurred(), "%s has the bridge", n.Name)
		}
	}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
}

func phaseOf(ctx context.Context, namespace, name string) corev1.PodPhase {
	GinkgoHelper()
	pod, err := suite.Cluster.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	return pod.Status.Phase
}

// expectNeighbour expects that a pod reaches an outside host of its VLAN at an address, and that this address has the MAC address of the host.
func expectNeighbour(ctx context.Context, pod *corev1.Pod, address netip.Addr, host, mac string) {
	GinkgoHelper()
	server := netip.AddrPortFrom(address, topology.OutsidePort)
	neighbour := func() (string, error) {
		return suite.Cluster.Exec(ctx, pod, "ip", "neighbour", "show", "to", address.String(), "dev", "eth0")
	}
	Eventually(fetchFrom).WithContext(ctx).WithArguments(fromPod(pod), server, "/hostname").WithTimeout(20*time.Second).Should(Equal(host), func() string {
		entry, err := neighbour()
		return fmt.Sprintf("%s to %s of %s (%s), neighbour %q, %v", pod.Name, address, host, mac, entry, err)
	})
	Expect(neighbour()).To(ContainSubstring("lladdr "+mac), "%s to %s", pod.Name, address)
}

// expectGroup runs a pod with two servers on a VLAN. Its security group allows one of them from everywhere, and no egress. The pods here and there of the same
// VLAN, on both nodes, and the hosts must reach this server only, and both servers before the pod gets the group and after it loses it.
func expectGroup(ctx context.Context, v topology.VLAN, here, there *corev1.Pod, hosts ...origin) {
	GinkgoHelper()
	group := &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: "one-port"}, Spec: kubeovnv1.SecurityGroupSpec{AllowedNamespaces: []kubeovnv1.AllowedNamespace{kubeovnv1.AllNamespaces}}}
	for version, everywhere := range map[string]string{"ipv4": "0.0.0.0/0", "ipv6": "::/0"} {
		group.Spec.IngressRules = append(group.Spec.IngressRules, kubeovnv1.SecurityGroupRule{
			IPVersion: version, Protocol: "tcp", Priority: 10, RemoteType: kubeovnv1.RemoteAddress, RemoteAddress: everywhere,
			PortRangeMin: cluster.HTTPPort, PortRangeMax: cluster.HTTPPort, Policy: kubeovnv1.SecurityGroupAllow,
		})
	}
	Expect(suite.Objects.Create(ctx, group)).To(Succeed())
	pod := inGroups("guarded", "", 1)
	pod.Namespace = v.Name
	DeferCleanup(func(ctx SpecContext) {
		removePods(ctx, pod.Namespace, pod.Name)
		deleteObjects(ctx, group)
	}, NodeTimeout(2*time.Minute))
	guarded, err := suite.Cluster.Run(ctx, pod)
	Expect(err).NotTo(HaveOccurred())

	var open []func() // each connection that the group allows or blocks
	var blocked []func()
	add := func(from origin, to netip.AddrPort, control func()) {
		open = append(open, opens(ctx, from, to))
		blocked = append(blocked, func() { silent(ctx, from, to, control) })
	}
	for _, a := range cluster.PodAddrs(guarded) {
		for _, from := range append([]origin{fromPod(here), fromPod(there)}, hosts...) {
			allowed := opens(ctx, from, netip.AddrPortFrom(a, cluster.HTTPPort))
			open = append(open, allowed)
			add(from, netip.AddrPortFrom(a, 5432), allowed)
		}
		outside := netip.AddrPortFrom(inFamily(v.Outside(), a), topology.OutsidePort)
		add(fromPod(guarded), outside, opens(ctx, fromPod(there), outside))
	}
	By("without the group")
	together(open...)
	By("with the group")
	nameGroups(ctx, guarded, group.Name)
	together(blocked...)
	By("without the group again")
	nameGroups(ctx, guarded, "")
	together(open...)
}

// expectACLs blocks connections to a pod from the first of the origins, a host of the VLAN, and then no longer. The others are not blocked.
func expectACLs(ctx context.Context, v topology.VLAN, to *corev1.Pod, host origin, others ...origin) {
	GinkgoHelper()
	var open, blocked, stay []func()
	var acls []kubeovnv1.ACL
	for _, a := range cluster.PodAddrs(to) {
		server, version := netip.AddrPortFrom(a, cluster.HTTPPort), "ip4"
		if a.Is6() {
			version = "ip6"
		}
		acls = append(acls, kubeovnv1.ACL{
			Direction: "to-lport", Priority: 1000, Match: fmt.Sprintf("%s.src == %s", version, inFamily(v.Outside(), a)), Action: "drop",
		})
		var control func()
		for _, other := range others {
			control = opens(ctx, other, server)
			stay = append(stay, control)
		}
		open = append(open, opens(ctx, host, server))
		blocked = append(blocked, func() { silent(ctx, host, server, control) })
	}
	together(slices.Concat(open, stay)...)
	By("with the ACLs")
	DeferCleanup(func(ctx SpecContext) {
		changeSubnet(ctx, v.Name, func(s *kubeovnv1.SubnetSpec) { s.ACLs = nil })
	}, NodeTimeout(time.Minute))
	changeSubnet(ctx, v.Name, func(s *kubeovnv1.SubnetSpec) { s.ACLs = acls })
	together(slices.Concat(blocked, stay)...)
	By("without the ACLs again")
	changeSubnet(ctx, v.Name, func(s *kubeovnv1.SubnetSpec) { s.ACLs = nil })
	together(slices.Concat(open, stay)...)
}

// expectDHCP runs DHCP clients in a pod, which must get the pod's addresses from OVN: the router of the VLAN has a DHCP server with others.
func expectDHCP(ctx context.Context, v topology.VLAN) {
	GinkgoHelper()
	DeferCleanup(func(ctx SpecContext) {
		changeSubnet(ctx, v.Name, func(s *kubeovnv1.SubnetSpec) { s.EnableDHCP = false })
	}, NodeTimeout(time.Minute))
	changeSubnet(ctx, v.Name, func(s *kubeovnv1.SubnetSpec) { s.EnableDHCP = true })
	pod := cluster.Server(v.Name, "machine", suite.Workers[0])
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{
		Add: []corev1.Capability{"NET_ADMIN", "NET_RAW"},
	}}
	DeferCleanup(func(ctx SpecContext) { removePods(ctx, v.Name, pod.Name) }, NodeTimeout(2*time.Minute))
	pod, err := suite.Cluster.Run(ctx, pod)
	Expect(err).NotTo(HaveOccurred())
	for _, addr := range cluster.PodAddrs(pod) {
		leased(ctx, pod, addr)
	}
}
