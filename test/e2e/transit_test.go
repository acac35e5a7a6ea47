// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

const transitNamespace = "e2e-transit"

var _ = Describe("custom VPCs with the addresses of the default one", Ordered, ContinueOnFailure, func() {
	BeforeAll(func(ctx SpecContext) {
		for _, name := range []string{"orange", "violet", transitNamespace} {
			makeNamespace(ctx, name)
			DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, name) }, NodeTimeout(4*time.Minute))
		}
	})

	It("reach DNS, the API server and Services, and the outside with natOutgoing", Label(smoke), func(ctx SpecContext) {
		applyVpcs(ctx, "vpc_services.yaml")
		active := expectTransit(ctx, "orange")
		service := dualService(ctx, "shop", suite.Workers[1])
		shop, err := suite.Cluster.CoreV1().Pods(transitNamespace).Get(ctx, "shop", metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		orange := tenantPod(ctx, "orange", "client", suite.Workers[0], "10.16.200.10", "fd00:10:16::c80a")
		violet := tenantPod(ctx, "violet", "client", suite.Workers[0], "10.16.200.10", "fd00:10:16::c80a")
		alone := tenantPod(ctx, "violet", "alone", suite.Workers[1], "10.16.200.20", "fd00:10:16::c814")
		for _, pod := range []*corev1.Pod{orange, violet} {
			Eventually(curl).WithContext(ctx).WithArguments(pod, "--insecure", "--output", "/dev/null", "--write-out", "%{http_code}",
				"https://kubernetes.default.svc.cluster.local/version").WithTimeout(30*time.Second).Should(Equal("200"), "the API server by DNS, from %s", pod.Name)
			for _, ip := range service.Spec.ClusterIPs {
				url := "http://" + net.JoinHostPort(ip, "80") + "/hostname"
				Eventually(curl).WithContext(ctx).WithArguments(pod, url).WithTimeout(20*time.Second).Should(Equal("shop"), "from %s to Service %s", pod.Name, ip)
			}
		}
		for _, like := range cluster.PodAddrs(orange) {
			expectSeen(ctx, orange, like, addressOfNode(ctx, active, like))
			host, _ := cluster.InFamilyOf(suite.Outside, like)
			outside := netip.AddrPortFrom(host, uint16(suite.OutsidePort))
			silent(ctx, fromPod(violet), outside, opens(ctx, fromPod(orange), outside)) // without natOutgoing
		}
		for _, a := range addressesOf(alone) {
			Eventually(reached).WithContext(ctx).WithArguments(violet, a).WithTimeout(20 * time.Second).Should(Equal("violet-alone"))
		}
		By("from another VPC")
		apart(ctx, orange, alone, violet)
		By("a pod of the default VPC by its address")
		apart(ctx, orange, shop, shop)
		for _, n := range suite.NodeAddresses {
			kubelet := netip.AddrPortFrom(netip.MustParseAddr(n), 10250)
			silent(ctx, fromPod(violet), kubelet, opens(ctx, fromPod(orange), kubelet)) // a node, from a subnet without natOutgoing
		}
	}, SpecTimeout(6*time.Minute))

	It("are probed by their kubelets", func(ctx SpecContext) {
		applyVpcs(ctx, "vpc_services.yaml")
		for i, namespace := range []string{"orange", "violet"} {
			for j, probe := range []corev1.ProbeHandler{
				{HTTPGet: &corev1.HTTPGetAction{Path: "/hostname", Port: intstr.FromInt32(cluster.HTTPPort)}},
				{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(cluster.HTTPPort)}},
			} {
				pod := cluster.Server(namespace, fmt.Sprintf("%s-probed-%d", namespace, j), suite.Workers[i])
				container := &pod.Spec.Containers[0]
				container.ReadinessProbe = &corev1.Probe{ProbeHandler: probe, PeriodSeconds: 1, FailureThreshold: 2}
				container.LivenessProbe = &corev1.Probe{ProbeHandler: probe, PeriodSeconds: 1, FailureThreshold: 60}
				running, err := suite.Cluster.Run(ctx, pod)
				Expect(err).NotTo(HaveOccurred(), "a probe that passes")
				expectReady(ctx, running, corev1.ConditionTrue)

				dead := cluster.Server(namespace, fmt.Sprintf("%s-dead-%d", namespace, j), suite.Workers[i])
				dead.Spec.Containers[0].Args[1] = "--http-port=8081" // not the probed port
				dead.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: probe, PeriodSeconds: 1}
				dead.Spec.Containers[0].LivenessProbe = &corev1.Probe{ProbeHandler: probe, PeriodSeconds: 1, FailureThreshold: 2}
				_, err = suite.Cluster.CoreV1().Pods(namespace).Create(ctx, dead, metav1.CreateOptions{})
				Expect(err).NotTo(HaveOccurred())
				Eventually(func() int32 {
					now, err := suite.Cluster.CoreV1().Pods(namespace).Get(ctx, dead.Name, metav1.GetOptions{})
					if err != nil || len(now.Status.ContainerStatuses) == 0 {
						return 0
					}
					return now.Status.ContainerStatuses[0].RestartCount
				}).WithContext(ctx).WithTimeout(90*time.Second).Should(BeNumerically(">", 0), "the liveness probe of %s fails", dead.Name)
				expectReady(ctx, dead, corev1.ConditionFalse)
				now, err := suite.Cluster.CoreV1().Pods(namespace).Get(ctx, running.Name, metav1.GetOptions{})
				Expect(err).NotTo(HaveOccurred())
				Expect(now.Status.ContainerStatuses[0].RestartCount).To(BeZero(), "the liveness probe of %s passes", running.Name)
			}
		}
	}, SpecTimeout(8*time.Minute))

	It("reach nothing of the cluster with clusterAccess None", func(ctx SpecContext) {
		applyVpcs(ctx, "vpc_services.yaml")
		service := dualService(ctx, "shop", suite.Workers[1])
		violet := tenantPod(ctx, "violet", "client", suite.Workers[0], "10.16.200.10", "fd00:10:16::c80a")
		url := "http://" + net.JoinHostPort(service.Spec.ClusterIP, "80") + "/hostname"
		Eventually(curl).WithContext(ctx).WithArguments(violet, url).WithTimeout(20 * time.Second).Should(Equal("shop"))
		vpc := &kubeovnv1.Vpc{}
		Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: "violet"}, vpc)).To(Succeed())
		base := vpc.DeepCopy()
		vpc.Spec.ClusterAccess = kubeovnv1.ClusterAccessNone
		Expect(suite.Objects.Patch(ctx, vpc, client.MergeFrom(base))).To(Succeed())
		for _, ip := range service.Spec.ClusterIPs {
			front := netip.AddrPortFrom(netip.MustParseAddr(ip), 80)
			notServed(ctx, fromPod(violet), front, opens(ctx, fromNode(suite.Workers[0]), front))
		}
	}, SpecTimeout(4*time.Minute))

	It("have Services of their own, which no other VPC reaches", Label(smoke), func(ctx SpecContext) {
		applyVpcs(ctx, "vpc_services.yaml")
		dualService(ctx, "shop", suite.Workers[1])
		shop, err := suite.Cluster.CoreV1().Pods(transitNamespace).Get(ctx, "shop", metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		tenantPod(ctx, "orange", "server", suite.Workers[0], "10.16.200.10", "fd00:10:16::c80a")
		orange := tenantPod(ctx, "orange", "client", suite.Workers[1], "10.16.200.11", "fd00:10:16::c80b")
		violet := tenantPod(ctx, "violet", "client", suite.Workers[1], "10.16.200.12", "fd00:10:16::c80c")
		podIn(ctx, transitNamespace, "decoy", suite.Workers[1], "ovn-default", "10.16.200.10", "fd00:10:16::c80a")
		policy := corev1.IPFamilyPolicyRequireDualStack
		service, err := suite.Cluster.CoreV1().Services("orange").Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "theirs"},
			Spec: corev1.ServiceSpec{
				Selector: map[string]string{"app": "orange-server"}, IPFamilyPolicy: &policy,
				Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(cluster.HTTPPort)}},
			},
		}, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) {
			Expect(suite.Cluster.CoreV1().Services("orange").Delete(ctx, "theirs", metav1.DeleteOptions{})).To(Succeed())
			Expect(suite.Cluster.CoreV1().Pods(transitNamespace).Delete(ctx, transitNamespace+"-decoy", metav1.DeleteOptions{})).To(Succeed())
		}, NodeTimeout(time.Minute))
		for _, ip := range service.Spec.ClusterIPs {
			url := "http://" + net.JoinHostPort(ip, "80") + "/hostname"
			Eventually(curl).WithContext(ctx).WithArguments(orange, url).WithTimeout(20*time.Second).Should(Equal("orange-server"), "in its own VPC")
			for _, from := range []*corev1.Pod{violet, shop} {
				front := netip.AddrPortFrom(netip.MustParseAddr(ip), 80)
				notServed(ctx, fromPod(from), front, opens(ctx, fromPod(orange), front))
			}
		}
	}, SpecTimeout(4*time.Minute))

	It("go through another node when the kubelet and the Open vSwitch of theirs die", Label(timed, disruptive, mayRestart), func(ctx SpecContext) {
		cordon(ctx, controlPlane(), true) // otherwise the databases could run on the node that dies
		DeferCleanup(func(ctx SpecContext) { cordon(ctx, controlPlane(), false) }, NodeTimeout(time.Minute))
		applyVpcs(ctx, "vpc_services.yaml")
		active := expectTransit(ctx, "orange")
		Expect(active).NotTo(Equal(controlPlane()), "a node that is cordoned")
		bystander := suite.Workers[slices.IndexFunc(suite.Workers, func(w string) bool { return w != active })]
		service := dualService(ctx, "shop", bystander)
		orange := tenantPod(ctx, "orange", "client", bystander, "10.16.200.10", "fd00:10:16::c80a")
		reach := func(ip string) {
			GinkgoHelper()
			url := "http://" + net.JoinHostPort(ip, "80") + "/hostname"
			Eventually(func() string { return curl(ctx, orange, "--max-time", "1", url) }).
				WithContext(ctx).WithTimeout(90 * time.Second).WithPolling(100 * time.Millisecond).Should(Equal("shop"))
		}
		for _, ip := range service.Spec.ClusterIPs {
			reach(ip)
		}
		vpc := &kubeovnv1.Vpc{}
		Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: "orange"}, vpc)).To(Succeed())
		expectLeases(ctx, vpc.Status.Transit.Node, vpc.Status.Transit.Standby)
		DeferCleanup(func(ctx SpecContext) { reviveNode(ctx, active) }, NodeTimeout(time.Minute))
		died := time.Now()
		killNode(ctx, active)
		for _, ip := range service.Spec.ClusterIPs {
			Eventually(func() string {
				return curl(ctx, orange, "--max-time", "1", "http://"+net.JoinHostPort(ip, "80")+"/hostname")
			}).
				WithContext(ctx).WithTimeout(90 * time.Second).WithPolling(100 * time.Millisecond).Should(Equal("shop"))
			within(died, failover, "transit node dead → a Service through the other one, "+ip)
		}
		Eventually(func() string { return expectTransit(ctx, "orange") }).WithContext(ctx).WithTimeout(30 * time.Second).ShouldNot(Equal(active))
		for _, like := range cluster.PodAddrs(orange) {
			Eventually(func() error {
				_, err := seenBy(ctx, orange, like)
				return err
			}).WithContext(ctx).WithTimeout(30*time.Second).Should(Succeed(), "to the outside in the family of %s", like)
		}
	}, SpecTimeout(6*time.Minute))
})

// expectReady waits until the kubelet reports the wanted Ready status of a pod.
func expectReady(ctx context.Context, pod *corev1.Pod, want corev1.ConditionStatus) {
	GinkgoHelper()
	Eventually(func() corev1.ConditionStatus {
		now, err := suite.Cluster.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return corev1.ConditionUnknown
		}
		for _, c := range now.Status.Conditions {
			if c.Type == corev1.PodReady {
				return c.Status
			}
		}
		return corev1.ConditionUnknown
	}).WithContext(ctx).WithTimeout(time.Minute).Should(Equal(want), "pod %s/%s", pod.Namespace, pod.Name)
}

func cordon(ctx context.Context, node string, on bool) {
	GinkgoHelper()
	n := &corev1.Node{}
	Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: node}, n)).To(Succeed())
	base := n.DeepCopy()
	n.Spec.Unschedulable = on
	Expect(suite.Objects.Patch(ctx, n, client.MergeFrom(base))).To(Succeed())
}

// expectTransit waits until a VPC's gateway router is ready, and returns its node.
func expectTransit(ctx context.Context, name string) (node string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		vpc := &kubeovnv1.Vpc{}
		g.Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: name}, vpc)).To(Succeed())
		g.Expect(meta.IsStatusConditionTrue(vpc.Status.Conditions, kubeovnv1.ConditionTransitReady)).To(BeTrue(), "%v", vpc.Status.Conditions)
		node = vpc.Status.Transit.Node
	}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
	return node
}

// expectLeases waits until gateway nodes renew their Leases, on which the failover depends. A node that fails earlier has 20 s for
// its first Lease.
func expectLeases(ctx context.Context, nodes ...string) {
	GinkgoHelper()
	for _, node := range nodes {
		Eventually(func(g Gomega) {
			lease, err := suite.Cluster.CoordinationV1().Leases(cluster.Namespace).Get(ctx, "gateway-"+node, metav1.GetOptions{})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(lease.Spec.RenewTime).NotTo(BeNil())
			g.Expect(time.Since(lease.Spec.RenewTime.Time)).To(BeNumerically("<", 10*time.Second))
		}).WithContext(ctx).WithTimeout(30*time.Second).Should(Succeed(), "the Lease of %s", node)
	}
}

// dualService creates a dual-stack Service of the default VPC with one pod on a node.
func dualService(ctx context.Context, name, node string) *corev1.Service {
	GinkgoHelper()
	_, err := suite.Cluster.Run(ctx, cluster.Server(transitNamespace, name, node))
	Expect(err).NotTo(HaveOccurred())
	policy := corev1.IPFamilyPolicyRequireDualStack
	service, err := suite.Cluster.CoreV1().Services(transitNamespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name}, IPFamilyPolicy: &policy,
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(cluster.HTTPPort)}},
		},
	}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) {
		Expect(suite.Cluster.CoreV1().Services(transitNamespace).Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed())
		Expect(suite.Cluster.CoreV1().Pods(transitNamespace).Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed())
		Eventually(func() error {
			_, err := suite.Cluster.CoreV1().Pods(transitNamespace).Get(ctx, name, metav1.GetOptions{})
			return err
		}).WithContext(ctx).WithTimeout(time.Minute).ShouldNot(Succeed())
	}, NodeTimeout(2*time.Minute))
	return service
}

// curl returns the output of curl in a pod, with a time-out of a few seconds, or "" if it fails.
func curl(ctx context.Context, from *corev1.Pod, args ...string) string {
	out, err := suite.Cluster.Exec(ctx, from, append([]string{"curl", "--silent", "--globoff", "--max-time", "3"}, args...)...)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}
