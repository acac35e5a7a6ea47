// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilexec "k8s.io/client-go/util/exec"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/trace"
	"github.com/kiln-net/kiln/test/cluster"
)

const traceNamespace = "e2e-trace"

// traced runs `kubectl ko trace` from a pod to an end at the port of HTTP, and returns its answer and the exit code.
func traced(ctx context.Context, from *corev1.Pod, to string, arguments ...string) (trace.Answer, int) {
	GinkgoHelper()
	if len(arguments) == 0 {
		arguments = []string{"tcp", fmt.Sprint(cluster.HTTPPort)}
	}
	out, err := ko(ctx, append([]string{"trace", "-o", "json", from.Namespace + "/" + from.Name, to}, arguments...)...)
	var answer trace.Answer
	Expect(json.Unmarshal([]byte(out), &answer)).To(Succeed(), "%s (%v)", out, err)
	code := 0
	if exit := (utilexec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitStatus()
	} else {
		Expect(err).NotTo(HaveOccurred())
	}
	return answer, code
}

// tracePasses checks that packets of a pod arrive at another pod in each family, and that trace answers so for the pod and for each of its addresses.
func tracePasses(ctx context.Context, from, to *corev1.Pod) {
	GinkgoHelper()
	expectReach(ctx, from, to)
	for _, end := range append(addressesOf(to), to.Namespace+"/"+to.Name) {
		answer, code := traced(ctx, from, end)
		Expect(answer.Verdict).To(Equal(trace.Delivered), "%s: %+v", end, answer)
		Expect(code).To(Equal(0))
	}
}

// traceDrops checks that no packet of a pod arrives at another pod, and that trace names the object that stops them.
func traceDrops(ctx context.Context, from, to, friend *corev1.Pod, by string) {
	GinkgoHelper()
	apart(ctx, from, to, friend)
	for _, end := range append(addressesOf(to), to.Namespace+"/"+to.Name) {
		answer, code := traced(ctx, from, end)
		Expect(answer.Verdict).To(Equal(trace.Dropped), "%s: %+v", end, answer)
		Expect(code).To(Equal(1))
		for i := range answer.Traces {
			Expect(answer.Traces[i].DecidedBy).NotTo(BeNil())
			Expect(answer.Traces[i].DecidedBy.String()).To(Equal(by), "%s: %+v", end, answer)
			Expect(answer.Traces[i].Change).NotTo(BeEmpty())
		}
	}
}

var _ = Describe("kubectl ko trace answers as packets do", func() {
	It("for a connection that works, a policy, a Service, a node and a host outside", func(ctx SpecContext) {
		from, to := serve(ctx, traceNamespace, "from", 0), serve(ctx, traceNamespace, "to", 1)
		DeferCleanup(deleteNamespace, traceNamespace)
		tracePasses(ctx, from, to)

		By("with the raw output of ovn-trace and ofproto/trace")
		raw := func(command ...string) string {
			GinkgoHelper()
			out, err := ko(ctx, append(command, traceNamespace+"/from", addressesOf(to)[0], "tcp", fmt.Sprint(cluster.HTTPPort))...)
			Expect(err).NotTo(HaveOccurred())
			return out
		}
		delivered := ContainSubstring(`output to "to.` + traceNamespace + `"`)
		Expect(raw("ovn-trace")).To(delivered)
		Expect(raw("trace", "--raw")).To(And(delivered, ContainSubstring("Start OVS Tracing"), ContainSubstring("Datapath actions: ")))

		By("through a Service")
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: traceNamespace, Name: "to"},
			Spec: corev1.ServiceSpec{
				Selector: to.Labels, IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
				Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(cluster.HTTPPort)}},
			},
		}
		Expect(suite.Objects.Create(ctx, service)).To(Succeed())
		Eventually(func(g Gomega) {
			answer, _ := traced(ctx, from, "service/"+traceNamespace+"/to", "80")
			g.Expect(answer.Verdict).To(Equal(trace.Delivered), "%+v", answer)
			g.Expect(answer.Traces[0].Endpoints).To(HaveLen(1))
		}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
		for _, ip := range service.Spec.ClusterIPs {
			_, err := suite.Cluster.Exec(ctx, from, "curl", "-sfg", "-m", "3", "http://"+net.JoinHostPort(ip, "80")+"/hostname")
			Expect(err).NotTo(HaveOccurred())
		}
		answer, code := traced(ctx, from, "service/"+traceNamespace+"/to", "81")
		Expect(code).To(Equal(1))
		Expect(answer.Traces[0].DecidedBy.String()).To(Equal("Service " + traceNamespace + "/to"))

		By("to a node")
		answer, code = traced(ctx, from, "node//"+suite.Workers[1], "icmp")
		Expect(code).To(Equal(0), "%+v", answer)
		node, err := suite.Cluster.CoreV1().Nodes().Get(ctx, suite.Workers[1], metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		for _, a := range cluster.NodeAddrs(node) {
			_, err := suite.Cluster.Exec(ctx, from, "ping", "-c1", "-W2", a.String())
			Expect(err).NotTo(HaveOccurred())
		}

		By("under a policy")
		applyPolicy(ctx, traceNamespace, "closed", `{podSelector: {matchLabels: {app: to}}, policyTypes: [Ingress]}`)
		traceDrops(ctx, from, to, to, "NetworkPolicy "+traceNamespace+"/closed")
		Expect(raw("ovn-trace")).NotTo(delivered)
		_, code = traced(ctx, from, "service/"+traceNamespace+"/to", "80")
		Expect(code).To(Equal(1))
	}, SpecTimeout(10*time.Minute))

	It("for a private subnet", func(ctx SpecContext) {
		useSample(ctx, "subnet_private.yaml", "vault", "friends")
		one := serve(ctx, "vault", "one", 0)
		friend, stranger := serve(ctx, "friends", "friend", 1), serve(ctx, "e2e-strangers", "stranger", 0)
		DeferCleanup(deleteNamespace, "e2e-strangers")
		tracePasses(ctx, friend, one)
		traceDrops(ctx, stranger, one, friend, "Subnet vault")
		traceDrops(ctx, one, stranger, friend, "Subnet vault")
		changeSubnet(ctx, "vault", func(s *kubeovnv1.SubnetSpec) { s.Private = false })
		tracePasses(ctx, stranger, one)
	}, SpecTimeout(6*time.Minute))

	It("for another VPC", func(ctx SpecContext) {
		for _, name := range []string{"blue", "red", "green"} {
			makeNamespace(ctx, name)
			DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, name) }, NodeTimeout(4*time.Minute))
		}
		applyVpcs(ctx, "vpc.yaml")
		applyVpcs(ctx, "vpc_peering.yaml")
		red := tenantPod(ctx, "red", "server", suite.Workers[1], "10.50.0.20", "fd00:10:50::20")
		friend := tenantPod(ctx, "red", "client", suite.Workers[0], "10.50.0.10", "fd00:10:50::10")
		green := tenantPod(ctx, "green", "client", suite.Workers[0], "10.51.0.10", "fd00:10:51::10")
		blue := tenantPod(ctx, "blue", "alone", suite.Workers[0], "10.50.0.30", "fd00:10:50::30")
		tracePasses(ctx, green, red)
		apart(ctx, blue, green, friend)
		answer, code := traced(ctx, blue, "green/"+green.Name)
		Expect(code).To(Equal(1), "%+v", answer)
		Expect(answer.Traces[0].DecidedBy.Kind).To(Equal("Vpc"))
	}, SpecTimeout(8*time.Minute))

	It("for a port that another program has replaced", func(ctx SpecContext) {
		from, to := serve(ctx, traceNamespace, "from", 0), serve(ctx, traceNamespace, "to", 1)
		DeferCleanup(deleteNamespace, traceNamespace)
		tracePasses(ctx, from, to)
		replacePort(ctx, to)
		Eventually(func(g Gomega) {
			answer, code := traced(ctx, from, to.Namespace+"/"+to.Name)
			g.Expect(code).To(Equal(1), "%+v", answer)
			g.Expect(answer.Traces[0].DecidedBy.String()).To(Equal("Pod " + to.Namespace + "/" + to.Name))
		}).WithContext(ctx).WithTimeout(2 * time.Minute).Should(Succeed())
		Expect(unanswered(ctx, from, to)).To(HaveLen(len(cluster.PodAddrs(to))))
	}, SpecTimeout(6*time.Minute))
})
