// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilexec "k8s.io/client-go/util/exec"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

var _ = Describe("Vips", Ordered, ContinueOnFailure, func() {
	var asker *corev1.Pod // in the default subnet, so answers to it are routed

	BeforeAll(func(ctx SpecContext) {
		applySample(ctx, "subnet.yaml")
		DeferCleanup(func(ctx SpecContext) {
			deleteObjects(ctx, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "web"}})
		}, NodeTimeout(time.Minute))
		for _, name := range []string{webNamespace, "e2e-asker"} {
			makeNamespace(ctx, name)
			DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, name) }, NodeTimeout(4*time.Minute))
		}
		Eventually(inForce).WithContext(ctx).WithArguments("web").WithTimeout(30 * time.Second).Should(BeTrue())
		asker = serve(ctx, "e2e-asker", "asker", 0)
		applySample(ctx, "vip.yaml")
		DeferCleanup(func(ctx SpecContext) {
			removePods(ctx, webNamespace)
			deleteObjects(ctx, &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "web-reserved"}},
				&kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "web-floating"}})
		}, NodeTimeout(2*time.Minute))
	}, NodeTimeout(3*time.Minute))

	It("give a pod their addresses, and the next one", Label(smoke), func(ctx SpecContext) {
		first, err := suite.Cluster.WaitPod(ctx, webNamespace, "reserved", cluster.Ready)
		Expect(err).NotTo(HaveOccurred())
		Expect(cluster.PodAddrs(first)).To(HaveExactElements(netip.MustParseAddr("10.17.0.220"), netip.MustParseAddr("fd00:10:17::220")))
		expectReach(ctx, asker, first)
		expectReach(ctx, first, asker)
		Expect(suite.Objects.Delete(ctx, first)).To(Succeed())
		heir := cluster.Server(webNamespace, "heir", suite.Workers[1])
		heir.Annotations = map[string]string{kubeovnv1.AnnotationVip.Key(): "web-reserved"}
		heir, err = suite.Cluster.Run(ctx, heir)
		Expect(err).NotTo(HaveOccurred())
		Expect(cluster.PodAddrs(heir)).To(Equal(cluster.PodAddrs(first)))
		Expect(heir.Annotations[keyMAC]).To(Equal(first.Annotations[keyMAC]))
		expectReach(ctx, asker, heir)
	}, SpecTimeout(3*time.Minute))

	It("move between the pods that share them, and to no other", Label(smoke), func(ctx SpecContext) {
		vip := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "web-floating"}}
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(vip), vip)).To(Succeed())
			g.Expect(conditionIs(vip.Status.Conditions, kubeovnv1.ConditionReady)).To(BeTrue())
		}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
		addresses := []netip.Addr{netip.MustParseAddr(vip.Status.V4IP), netip.MustParseAddr(vip.Status.V6IP)}
		named := holder(ctx, "named", 0, map[string]string{kubeovnv1.AnnotationAAPs.Key(): "web-floating"}, nil)
		selected := holder(ctx, "selected", 1, nil, map[string]string{"floating": "web"})
		stranger := holder(ctx, "stranger", 1, nil, nil)
		neighbour := serve(ctx, webNamespace, "neighbour", 0)

		for _, has := range []*corev1.Pod{named, selected, named} {
			By("moving them to pod " + has.Name)
			for _, pod := range []*corev1.Pod{named, selected} {
				take(ctx, pod, pod == has, addresses)
			}
			for _, a := range addresses {
				Eventually(whoAnswers).WithContext(ctx).WithArguments(neighbour, a).WithTimeout(time.Minute).Should(Equal(has.Name))
				Eventually(whoAnswers).WithContext(ctx).WithArguments(asker, a).WithTimeout(time.Minute).Should(Equal(has.Name), "routed")
			}
		}
		By("a pod that does not share them")
		take(ctx, named, false, addresses)
		take(ctx, stranger, true, addresses)
		for _, from := range []*corev1.Pod{neighbour, asker} {
			for _, a := range addresses {
				Eventually(whoAnswers).WithContext(ctx).WithArguments(from, a).WithTimeout(20 * time.Second).ShouldNot(Equal(named.Name))
				Consistently(whoAnswers).WithContext(ctx).WithArguments(from, a).WithTimeout(3 * time.Second).ShouldNot(Equal(stranger.Name))
			}
		}
	}, SpecTimeout(5*time.Minute))
})

// holder runs a pod that can add addresses to its interface. Port security limits its port to allowed addresses.
func holder(ctx context.Context, name string, worker int, annotations, labels map[string]string) *corev1.Pod {
	GinkgoHelper()
	pod := cluster.Server(webNamespace, name, suite.Workers[worker%len(suite.Workers)])
	pod.Annotations = map[string]string{kubeovnv1.AnnotationPortSecurity.Key(): "true"}
	for key, value := range annotations {
		pod.Annotations[key] = value
	}
	for key, value := range labels {
		pod.Labels[key] = value
	}
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: new(true)} // to set its own sysctls
	pod, err := suite.Cluster.Run(ctx, pod)
	Expect(err).NotTo(HaveOccurred())
	return pod
}

// take adds addresses to a pod's interface and announces them, or removes them.
func take(ctx context.Context, pod *corev1.Pod, has bool, addresses []netip.Addr) {
	GinkgoHelper()
	for _, a := range addresses {
		prefix := netip.PrefixFrom(a, a.BitLen()).String()
		if !has {
			_, _ = suite.Cluster.Exec(ctx, pod, "ip", "address", "del", prefix, "dev", "eth0") // the pod may lack the address
			continue
		}
		command := []string{"ip", "address", "replace", prefix, "dev", "eth0"}
		if a.Is6() {
			command = append(command, "nodad")
		}
		_, err := suite.Cluster.Exec(ctx, pod, command...)
		Expect(err).NotTo(HaveOccurred())
	}
	if has {
		announce(ctx, pod)
	}
}

// announceScript makes the kernel announce its addresses like keepalived after a takeover: by gratuitous ARP and unsolicited
// neighbour advertisements, which the kernel sends when the hardware address is set.
const announceScript = `echo 1 >/proc/sys/net/ipv4/conf/eth0/arp_notify && echo 1 >/proc/sys/net/ipv6/conf/eth0/ndisc_notify &&
ip link set eth0 address "$(cat /sys/class/net/eth0/address)"`

func announce(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	_, err := suite.Cluster.Exec(ctx, pod, "sh", "-c", announceScript)
	Expect(err).NotTo(HaveOccurred())
}

// whoAnswers returns the name of the pod that answers at an address, or "" if none does: curl(1) could not connect, timed out, or got no
// response.
func whoAnswers(ctx context.Context, from *corev1.Pod, address netip.Addr) (string, error) {
	url := fmt.Sprintf("http://%s/hostname", netip.AddrPortFrom(address, cluster.HTTPPort))
	name, err := suite.Cluster.Exec(ctx, from, "curl", "-sf", "-m", "1", url)
	var exit utilexec.CodeExitError
	if errors.As(err, &exit) && slices.Contains([]int{7, 28, 52, 56}, exit.Code) {
		return "", nil
	}
	return name, err
}
