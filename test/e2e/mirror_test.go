// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/test/cluster"
)

const (
	mirrorNamespace = "e2e-mirror"
	mirrorDevice    = "mirror0"
)

var keyMirror = kubeovnv1.AnnotationMirror.Key()

// The specs send numbered datagrams between pods and compare their copies with docs/user/mirrors.md.
var _ = Describe("mirrors", Label("mirror"), Ordered, ContinueOnFailure, func() {
	var one, two, far *corev1.Pod // on the first worker, and on another

	BeforeAll(func(ctx SpecContext) {
		one, two, far = serve(ctx, mirrorNamespace, "one", 0), serve(ctx, mirrorNamespace, "two", 0), serve(ctx, mirrorNamespace, "far", 1)
	}, NodeTimeout(4*time.Minute))
	AfterAll(func(ctx SpecContext) { deleteNamespace(ctx, mirrorNamespace) }, NodeTimeout(4*time.Minute))
	AfterEach(func(ctx SpecContext) {
		for _, pod := range []*corev1.Pod{one, two, far} {
			mirror(ctx, pod, "")
			inMirrorPod(ctx, pod, `touch /tmp/mirror-stop`) // if the spec failed before it
		}
	}, NodeTimeout(2*time.Minute))

	It("begin and end while 1,000 packets per second pass between two pods of a node", func(ctx SpecContext) {
		node := captureMirror(suite.Workers[0], mirrorDevice, asIs)
		startSinks(ctx, one, two)
		flows := append(mirrorFlows("switched", one, two), mirrorFlows("switched", two, one)...)
		beginMirrorFlows(ctx, 1000/len(flows), flows...)
		begun := func(at int) func(g Gomega) {
			return func(g Gomega) {
				for _, f := range flows {
					g.Expect(node.count(f.tag)).To(BeNumerically(">=", at), f.tag)
				}
			}
		}
		time.Sleep(time.Second)
		for _, f := range flows {
			Expect(node.count(f.tag)).To(BeZero(), "copies without the annotation")
		}
		mirror(ctx, one, "true")
		Eventually(begun(500)).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
		By("with the annotation on both pods")
		mirror(ctx, two, "true")
		Eventually(begun(1000)).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
		mirror(ctx, one, "false")
		Eventually(begun(1500)).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
		mirror(ctx, two, "")
		var before int
		Eventually(func() bool {
			last := before
			before = node.count(flows[0].tag)
			return last == before
		}).WithContext(ctx).WithTimeout(30*time.Second).WithPolling(time.Second).Should(BeTrue(), "copies end")
		sent, received := endMirrorFlows(ctx, []*corev1.Pod{one, two}, flows...)
		for _, f := range flows {
			node.expectRange(f.tag, sent[f.tag])
			AddReportEntry(f.tag+" received", received[f.tag])
		}
	}, SpecTimeout(6*time.Minute))

	It("are on the node of each pod, and survive restarts of the agent and of Open vSwitch", Label(disruptive, mayRestart), func(ctx SpecContext) {
		pods := []*corev1.Pod{one, far}
		mirror(ctx, one, "true")
		mirror(ctx, far, "true")
		expectCopies(ctx, "across", one, far, suite.Workers[0], suite.Workers[1])

		By("killing the agent")
		agents, err := suite.Cluster.PodsOf(ctx, "kube-ovn-cni")
		Expect(err).NotTo(HaveOccurred())
		node := captureMirror(suite.Workers[0], mirrorDevice, asIs)
		startSinks(ctx, pods...)
		flows := mirrorFlows("agent", one, far)
		beginMirrorFlows(ctx, 200, flows...)
		for i := range agents {
			if agents[i].Spec.NodeName == suite.Workers[0] {
				Expect(suite.kill(ctx, &agents[i])).To(Succeed())
				Eventually(func(g Gomega) {
					pod, err := suite.Cluster.CoreV1().Pods(agents[i].Namespace).Get(ctx, agents[i].Name, metav1.GetOptions{})
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(restarts(pod)).To(BeNumerically(">", restarts(&agents[i])))
					g.Expect(cluster.Ready(pod)).To(BeTrue())
				}).WithContext(ctx).WithTimeout(2 * time.Minute).Should(Succeed())
			}
		}
		sent, _ := endMirrorFlows(ctx, pods, flows...)
		for _, f := range flows {
			node.expectAll(ctx, f.tag, sent[f.tag])
		}

		By("killing ovs-vswitchd")
		old := exec(ctx, suite.Workers[0], "pidof", "ovs-vswitchd")
		exec(ctx, suite.Workers[0], "bash", "-c", "kill -9 $(pidof ovs-vswitchd)")
		Eventually(func(g Gomega) {
			now, err := suite.Node.Exec(ctx, suite.Workers[0], "pidof", "ovs-vswitchd")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(now).NotTo(Equal(old))
			up, err := suite.Node.Exec(ctx, suite.Workers[0], "ip", "-o", "link", "show", "up", mirrorDevice)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(up).To(ContainSubstring(mirrorDevice))
		}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
		expectReach(ctx, one, far)
		expectCopies(ctx, "restarted", one, far, suite.Workers[0], suite.Workers[1])
	}, SpecTimeout(8*time.Minute))

	It("copy packets to a Service whose endpoint is on the same node", func(ctx SpecContext) {
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: mirrorNamespace, Name: "two"},
			Spec: corev1.ServiceSpec{
				IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack), Selector: two.Labels,
				Ports: []corev1.ServicePort{{Port: mirrorPort, TargetPort: intstr.FromInt32(mirrorPort), Protocol: corev1.ProtocolUDP}},
			},
		}
		service = createService(ctx, service)
		mirror(ctx, one, "true")
		mirror(ctx, two, "true")
		node := captureMirror(suite.Workers[0], mirrorDevice, asIs)
		startSinks(ctx, one, two) // in one, too: it removes the file that stops senders
		for i, f := range mirrorFlows("service", one, two) {
			f.to = netip.MustParseAddr(service.Spec.ClusterIPs[i]) // in the order of the addresses of pods
			mirrorSettled(ctx, node, f)
			mirrorBurst(ctx, 500, 500, f)
			node.expectAll(ctx, f.tag, 500)
		}
	}, SpecTimeout(4*time.Minute))

	DescribeTable("reach a collector outside, while 1,000 packets per second pass",
		func(ctx SpecContext, kind kubeovnv1.TrafficMirrorType, family int) {
			collector := suite.Lab.Nodes()[0] // runs none of the pods: its interface for tunnels receives what a collector would
			m := &kubeovnv1.TrafficMirror{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("e2e-%s-%d", kind, family)}}
			m.Spec = kubeovnv1.TrafficMirrorSpec{
				Type: kind, Sink: collector.Tunnel[family].Addr().String(), Key: 700 + int64(family), PodSelector: &metav1.LabelSelector{MatchLabels: one.Labels},
			}
			protocol := map[kubeovnv1.TrafficMirrorType]uint16{kubeovnv1.TrafficMirrorGRE: greEthernet, kubeovnv1.TrafficMirrorERSPAN: greERSPAN}[kind]
			c := captureMirror(collector.Name, "eth1", tunneled(protocol, uint32(m.Spec.Key)))
			startSinks(ctx, one, far)
			flows := append(mirrorFlows(m.Name, one, far), mirrorFlows(m.Name, far, one)...)
			beginMirrorFlows(ctx, 1000/len(flows), flows...)
			time.Sleep(time.Second)
			Expect(suite.Objects.Create(ctx, m)).To(Succeed())
			DeferCleanup(func(ctx SpecContext) { Expect(client.IgnoreNotFound(suite.Objects.Delete(ctx, m))).To(Succeed()) }, NodeTimeout(time.Minute))
			for _, f := range flows {
				Eventually(func() int { return c.count(f.tag) }).WithContext(ctx).WithTimeout(time.Minute).Should(BeNumerically(">=", 1000), f.tag)
			}
			Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(m), m)).To(Succeed())
			Expect(m.Status.Ports).To(BeEquivalentTo(1), "%v", m.Status.Conditions)
			Expect(suite.Objects.Delete(ctx, m)).To(Succeed())
			var before int
			Eventually(func() bool {
				last := before
				before = c.count(flows[0].tag)
				return last == before
			}).WithContext(ctx).WithTimeout(30*time.Second).WithPolling(time.Second).Should(BeTrue(), "copies end")
			sent, received := endMirrorFlows(ctx, []*corev1.Pod{one, far}, flows...)
			for _, f := range flows {
				AddReportEntry(f.tag+" received", received[f.tag])
				c.expectRange(f.tag, sent[f.tag])
			}
		},
		Entry("in GRE over IPv4", kubeovnv1.TrafficMirrorGRE, 0, SpecTimeout(4*time.Minute)),
		Entry("in ERSPAN over IPv4", kubeovnv1.TrafficMirrorERSPAN, 0, SpecTimeout(4*time.Minute)),
		Entry("in GRE over IPv6", kubeovnv1.TrafficMirrorGRE, 1, SpecTimeout(4*time.Minute)),
		Entry("in ERSPAN over IPv6", kubeovnv1.TrafficMirrorERSPAN, 1, SpecTimeout(4*time.Minute)),
	)

	It("follow the mode of the OVNCluster", func(ctx SpecContext) {
		DeferCleanup(func(ctx SpecContext) { mirrorMode(ctx, v1alpha1.MirrorSelected) }, NodeTimeout(time.Minute))
		mirrorMode(ctx, v1alpha1.MirrorAll)
		expectCopies(ctx, "all", one, two, suite.Workers[0])
		mirrorMode(ctx, v1alpha1.MirrorNone)
		for _, node := range suite.Workers {
			Eventually(func() string { out, _ := suite.Node.Exec(ctx, node, "ip", "-o", "link"); return out }).WithContext(ctx).WithTimeout(time.Minute).
				ShouldNot(ContainSubstring(mirrorDevice))
		}
		mirror(ctx, one, "true")
		Eventually(func(g Gomega) {
			events, err := suite.Cluster.CoreV1().Events(mirrorNamespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + one.Name})
			g.Expect(err).NotTo(HaveOccurred())
			var texts []string
			for _, e := range events.Items {
				texts = append(texts, e.Reason+": "+e.Message)
			}
			g.Expect(texts).To(ContainElement(ContainSubstring("spec.agent.mirror of the OVNCluster is None")))
		}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
		mirrorMode(ctx, v1alpha1.MirrorSelected)
		expectCopies(ctx, "selected", one, two, suite.Workers[0])
	}, SpecTimeout(6*time.Minute))
})

// mirror sets the annotation of a pod, or removes it when value is "".
func mirror(ctx context.Context, pod *corev1.Pod, value string) {
	GinkgoHelper()
	Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(pod), pod)).To(Succeed())
	annotate(ctx, pod, keyMirror, value)
}

// mirrorMode changes what nodes copy.
func mirrorMode(ctx context.Context, mode v1alpha1.MirrorMode) {
	GinkgoHelper()
	changeCluster(ctx, func(s *v1alpha1.OVNClusterSpec) { s.Agent.Mirror = mode })
}

// expectCopies sends datagrams between two pods, in both directions and all families, and expects copies of each on every one of the nodes.
func expectCopies(ctx context.Context, name string, a, b *corev1.Pod, nodes ...string) {
	GinkgoHelper()
	const datagrams = 1000
	var captures []*mirrorCapture
	for _, node := range nodes {
		Eventually(func() string { out, _ := suite.Node.Exec(ctx, node, "ip", "-o", "link", "show", "up"); return out }).WithContext(ctx).WithTimeout(time.Minute).
			Should(ContainSubstring(mirrorDevice))
		captures = append(captures, captureMirror(node, mirrorDevice, asIs))
	}
	startSinks(ctx, a, b)
	flows := append(mirrorFlows(name, a, b), mirrorFlows(name, b, a)...)
	for _, f := range flows {
		for _, c := range captures {
			mirrorSettled(ctx, c, f)
		}
	}
	mirrorBurst(ctx, 1000, datagrams, flows...)
	for _, c := range captures {
		for _, f := range flows {
			c.expectAll(ctx, f.tag, datagrams)
		}
		c.stop()
	}
}

// mirrorSettled waits until the copies of a flow arrive: the mirror follows its annotation by events.
func mirrorSettled(ctx context.Context, c *mirrorCapture, f mirrorFlow) {
	GinkgoHelper()
	f.tag = fmt.Sprintf("settling-%s", strings.TrimPrefix(f.tag, "settling-"))
	Eventually(func() int {
		mirrorBurst(ctx, 100, 1, f)
		return c.count(f.tag)
	}).WithContext(ctx).WithTimeout(30*time.Second).Should(BeNumerically(">", 0), f.tag)
}
