// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

var _ = Describe("subnets", func() {
	It("keeps a private subnet apart from all but its friends and nodes", Label(smoke), func(ctx SpecContext) {
		useSample(ctx, "subnet_private.yaml", "vault", "friends")
		one, two := serve(ctx, "vault", "one", 0), serve(ctx, "vault", "two", 1) // ready: the kubelet's probes succeed
		friend, stranger := serve(ctx, "friends", "friend", 1), serve(ctx, "e2e-strangers", "stranger", 0)
		DeferCleanup(deleteNamespace, "e2e-strangers")

		expectReach(ctx, one, two)
		expectReach(ctx, friend, one)
		expectReach(ctx, one, friend)
		apart(ctx, stranger, one, friend)
		apart(ctx, one, stranger, friend)
		expectReach(ctx, stranger, friend)

		By("taking the friends out")
		changeSubnet(ctx, "vault", func(s *kubeovnv1.SubnetSpec) { s.AllowSubnets = nil })
		apart(ctx, friend, one, two)
		By("opening the subnet")
		changeSubnet(ctx, "vault", func(s *kubeovnv1.SubnetSpec) { s.Private = false })
		expectReach(ctx, stranger, one)
	}, SpecTimeout(6*time.Minute))

	It("enforces a subnet's own rules, and keeps them when a wrong one is written", Label(smoke), func(ctx SpecContext) {
		useSample(ctx, "subnet_acls.yaml", "frontends")
		web, neighbour := serve(ctx, "frontends", "web", 0), serve(ctx, "frontends", "neighbour", 1)
		stranger := serve(ctx, "e2e-strangers", "stranger", 1)
		DeferCleanup(deleteNamespace, "e2e-strangers")
		expectReach(ctx, stranger, web)
		changeSubnet(ctx, "frontends", func(s *kubeovnv1.SubnetSpec) { s.ACLs = s.ACLs[1:] })
		connects(ctx, stranger, web, corev1.ProtocolTCP, cluster.HTTPPort, false)
		expectReach(ctx, neighbour, web)

		subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "frontends"}}
		change(ctx, subnet, func(s *kubeovnv1.SubnetSpec) { s.ACLs[0].Match = "tcp.port == 8080" })
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(subnet), subnet)).To(Succeed())
			g.Expect(falseMessages(subnet)).To(ContainElement(ContainSubstring("there is no such field: write tcp.dst")))
		}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
		connects(ctx, stranger, web, corev1.ProtocolTCP, cluster.HTTPPort, false)
	}, SpecTimeout(5*time.Minute))

	It("gives a real DHCP client its address in both families", Label(smoke), func(ctx SpecContext) {
		useSample(ctx, "subnet_dhcp.yaml", "machines")
		pod := cluster.Server("machines", "machine", suite.Workers[0])
		pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{
			Add: []corev1.Capability{"NET_ADMIN", "NET_RAW"},
		}}
		pod, err := suite.Cluster.Run(ctx, pod)
		Expect(err).NotTo(HaveOccurred())
		for _, addr := range cluster.PodAddrs(pod) {
			lease := leased(ctx, pod, addr)
			if addr.Is4() {
				Expect(lease).To(And(ContainSubstring("dhcp-lease-time 600"), ContainSubstring("routers 10.33.0.1"),
					ContainSubstring("domain-name-servers 10.96.0.10,10.96.0.11"), ContainSubstring("interface-mtu 1400")))
			}
		}

		By("with options of the pod's own, and without a default route")
		applySample(ctx, "pod_options.yaml")
		own, err := suite.Cluster.WaitPod(ctx, "machines", "options", cluster.Ready)
		Expect(err).NotTo(HaveOccurred())
		Expect(leased(ctx, own, cluster.PodAddrs(own)[0])).To(And(ContainSubstring("dhcp-lease-time 120"), ContainSubstring("domain-name-servers 10.96.0.10")))
		for _, family := range []string{"-4", "-6"} {
			routes, err := suite.Cluster.Exec(ctx, own, "ip", family, "route")
			Expect(err).NotTo(HaveOccurred())
			asked := map[string]string{"-4": "10.16.0.0/16 via 10.33.0.1", "-6": "fd00:10:16::/112 via fd00:10:33::1"}[family]
			Expect(routes).To(And(Not(ContainSubstring("default")), ContainSubstring(asked)))
		}
		dns, err := suite.Cluster.CoreV1().Services(metav1.NamespaceSystem).Get(ctx, "kube-dns", metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		front := netip.AddrPortFrom(netip.MustParseAddr(dns.Spec.ClusterIP), 53) // not in a network that the pod has a route to
		silent(ctx, fromPod(own), front, opens(ctx, fromPod(pod), front))
		expectReach(ctx, own, pod)
		forwardsToUnknown(ctx, own, pod)

		By("under a policy that isolates the pods")
		applyPolicy(ctx, "machines", "isolates", `{podSelector: {}, policyTypes: [Ingress, Egress]}`)
		var targets []target
		for _, addr := range cluster.PodAddrs(pod) {
			targets = append(targets, target{tcp, netip.AddrPortFrom(addr, cluster.HTTPPort)})
		}
		apartAt(ctx, own, pod, targets...) // only the pod itself can reach it
		for _, addr := range cluster.PodAddrs(pod) {
			leased(ctx, pod, addr)
		}
	}, SpecTimeout(4*time.Minute))

	// The second pod gets the address that was the subnet's broadcast address before the growth.
})

// forwardsToUnknown checks the annotation layer2_forward. A pod with another MAC address and additional addresses, like a bridge,
// receives packets to them only with the annotation. Afterwards the pod has its own MAC address again.
func forwardsToUnknown(ctx context.Context, asker, bridge *corev1.Pod) {
	GinkgoHelper()
	By("to a MAC address that no port has")
	inBridge := func(command string) string {
		GinkgoHelper()
		out, err := suite.Cluster.Exec(ctx, bridge, "sh", "-c", command)
		Expect(err).NotTo(HaveOccurred())
		return strings.TrimSpace(out)
	}
	own := inBridge("cat /sys/class/net/eth0/address")
	inBridge("ip link set eth0 address 02:00:00:00:33:99 && ip addr add 10.33.0.200/32 dev eth0 && ip addr add fd00:10:33::200/128 dev eth0 nodad")
	var targets []target
	for _, a := range []string{"10.33.0.200", "fd00:10:33::200"} {
		targets = append(targets, target{tcp, netip.AddrPortFrom(netip.MustParseAddr(a), cluster.HTTPPort)})
	}
	apartAt(ctx, asker, bridge, targets...) // the switch drops packets to an unknown MAC address
	annotate(ctx, bridge, kubeovnv1.AnnotationLayer2Forward.Key(), "true")
	apartAt(ctx, asker, bridge, targets...) // the port accepts only the pod's own addresses
	changeSubnet(ctx, bridge.Annotations[kubeovnv1.AnnotationLogicalSwitch.Key()], func(s *kubeovnv1.SubnetSpec) { s.PortSecurity = kubeovnv1.PortSecurityRequested })
	Eventually(arrived).WithContext(ctx).WithArguments(asker, targets).WithTimeout(20*time.Second).Should(HaveLen(len(targets)), "packets to the bridge")
	inBridge("ip addr del 10.33.0.200/32 dev eth0 && ip addr del fd00:10:33::200/128 dev eth0 && ip link set eth0 address " + own)
	expectReach(ctx, asker, bridge)
}

// leasedScript kills the DHCP client of an earlier call, which still runs in the background, and removes its lease, because a
// client without an answer would use it.
const leasedScript = `[ ! -e $3 ] || kill -9 $(cat $3); rm -f $2 $3
exec timeout 25 dhclient $1 -1 -sf /bin/true -lf $2 -pf $3 eth0`

// leased runs a real DHCP client for a pod's address, and returns its lease.
func leased(ctx context.Context, pod *corev1.Pod, addr netip.Addr) string {
	GinkgoHelper()
	family, name := "-4", "fixed-address"
	if addr.Is6() {
		family, name = "-6", "iaaddr"
	}
	file := "/tmp/leases" + family
	Eventually(func() error { // DHCPv6 needs the link-local address, which is usable only after duplicate address detection
		_, err := suite.Cluster.Exec(ctx, pod, "sh", "-c", leasedScript, "leased", family, file, "/tmp/pid"+family)
		return err
	}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
	lease, err := suite.Cluster.Exec(ctx, pod, "cat", file)
	Expect(err).NotTo(HaveOccurred())
	got := regexp.MustCompile(name + ` ([0-9a-f.:]+)`).FindStringSubmatch(lease)
	Expect(got).To(HaveLen(2), lease)
	Expect(netip.MustParseAddr(got[1])).To(Equal(addr))
	return lease
}

// useSample applies a sample unchanged and creates its namespaces, until the end of the spec.
func useSample(ctx context.Context, sample string, namespaces ...string) {
	GinkgoHelper()
	applySample(ctx, sample)
	for _, name := range namespaces {
		makeNamespace(ctx, name)
		DeferCleanup(func(ctx SpecContext) {
			deleteNamespace(ctx, name)
			subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}}
			Expect(client.IgnoreNotFound(suite.Objects.Delete(ctx, subnet))).To(Succeed())
		}, NodeTimeout(4*time.Minute))
		Eventually(func(g Gomega) { g.Expect(inForce(ctx, name)).To(BeTrue()) }).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
	}
}

// changeSubnet changes a subnet's spec and waits until the change is applied.
func changeSubnet(ctx context.Context, name string, change func(*kubeovnv1.SubnetSpec)) {
	GinkgoHelper()
	Eventually(func() error {
		subnet := &kubeovnv1.Subnet{}
		if err := suite.Objects.Get(ctx, client.ObjectKey{Name: name}, subnet); err != nil {
			return err
		}
		change(&subnet.Spec)
		return suite.Objects.Update(ctx, subnet)
	}).WithContext(ctx).WithTimeout(10 * time.Second).Should(Succeed())
	Eventually(func(g Gomega) { g.Expect(inForce(ctx, name)).To(BeTrue()) }).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
}

// inForce reports whether the present generation of a subnet is applied.
func inForce(ctx context.Context, name string) (bool, error) {
	subnet := &kubeovnv1.Subnet{}
	if err := suite.Objects.Get(ctx, client.ObjectKey{Name: name}, subnet); err != nil {
		return false, err
	}
	for _, c := range subnet.Status.Conditions {
		if c.Type == kubeovnv1.ConditionReady {
			return c.Status == metav1.ConditionTrue && c.ObservedGeneration == subnet.Generation, nil
		}
	}
	return false, nil
}

// serve runs a server on a worker.
func serve(ctx context.Context, namespace, name string, worker int) *corev1.Pod {
	GinkgoHelper()
	makeNamespace(ctx, namespace)
	pod, err := suite.Cluster.Run(ctx, cluster.Server(namespace, name, suite.Workers[worker%len(suite.Workers)]))
	Expect(err).NotTo(HaveOccurred())
	return pod
}

// expectReach waits until a pod gets answers from another pod by HTTP, in every family that both have. After that, the first
// connection must be answered at once.
func expectReach(ctx context.Context, from, to *corev1.Pod) {
	GinkgoHelper()
	what := fmt.Sprintf("%s to %s, not answered", from.Name, to.Name)
	Eventually(func() []string { return unanswered(ctx, from, to) }).WithContext(ctx).WithTimeout(20*time.Second).Should(BeEmpty(), what)
	for _, t := range targetsOf(from, to) {
		if t.protocol == tcp {
			connectsAtOnce(ctx, fromPod(from), t.to)
		}
	}
}

// unanswered returns the addresses of a pod that do not answer. It tries all of them at once.
func unanswered(ctx context.Context, from, to *corev1.Pod) []string {
	var wait sync.WaitGroup
	var mu sync.Mutex
	var found []string
	for _, addr := range cluster.PodAddrs(to) {
		if _, both := cluster.InFamilyOf(cluster.PodAddrs(from), addr); !both {
			continue
		}
		wait.Go(func() {
			url := fmt.Sprintf("http://%s/hostname", netip.AddrPortFrom(addr, cluster.HTTPPort))
			if _, err := suite.Cluster.Exec(ctx, from, "curl", "-sf", "-m", "1", url); err != nil {
				mu.Lock()
				defer mu.Unlock()
				found = append(found, addr.String()+": "+err.Error())
			}
		})
	}
	wait.Wait()
	return found
}
