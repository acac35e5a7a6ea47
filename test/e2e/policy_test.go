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
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/test/cluster"
	"github.com/kiln-net/kiln/test/oracle"
)

// policyCases are policies by namespace, in YAML, with %4 and %6 for the addresses of e2e-px/b.
var policyCases = []struct {
	name     string
	policies [][2]string
}{
	{"no policy", nil},
	{"nothing comes in", [][2]string{{"e2e-px", `podSelector: {}`}}},
	{"nothing goes out", [][2]string{{"e2e-px", `{podSelector: {}, policyTypes: [Egress]}`}}},
	{"nothing passes", [][2]string{{"e2e-px", `{podSelector: {}, policyTypes: [Ingress, Egress]}`}}},
	{"everything comes in, nothing goes out", [][2]string{{"e2e-px", `{podSelector: {}, ingress: [{}], policyTypes: [Ingress, Egress]}`}}},
	{"a pod of the namespace on a port", [][2]string{{"e2e-px", `
podSelector: {matchLabels: {pod: a}}
ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}], ports: [{port: 80}]}]`}}},
	{"a namespace", [][2]string{{"e2e-px", `
podSelector: {}
ingress: [{from: [{namespaceSelector: {matchLabels: {ns: "y"}}}]}]`}}},
	{"a pod of a namespace", [][2]string{{"e2e-px", `
podSelector: {}
ingress: [{from: [{namespaceSelector: {matchLabels: {ns: "y"}}, podSelector: {matchLabels: {pod: a}}}]}]`}}},
	{"one of two peers", [][2]string{{"e2e-px", `
podSelector: {}
ingress: [{from: [{namespaceSelector: {matchLabels: {ns: "y"}}}, {podSelector: {matchLabels: {pod: a}}}], ports: [{protocol: UDP}]}]`}}},
	{"expressions over all namespaces", [][2]string{{"e2e-py", `
podSelector: {matchExpressions: [{key: pod, operator: In, values: [a, z]}]}
ingress: [{from: [{namespaceSelector: {}, podSelector: {matchExpressions: [{key: pod, operator: NotIn, values: [b]}]}}]}]`}}},
	{"networks with exceptions", [][2]string{{"e2e-px", `
podSelector: {matchLabels: {pod: a}}
ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [%4/32]}}, {ipBlock: {cidr: "::/0", except: ["%6/128"]}}]}]`}}},
	{"an exception takes nothing from other peers", [][2]string{{"e2e-px", `
podSelector: {matchLabels: {pod: a}}
ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0, except: [%4/32]}}, {podSelector: {matchLabels: {pod: b}}}], ports: [{port: 81}]}]`}}},
	{"one family", [][2]string{{"e2e-px", `
podSelector: {}
policyTypes: [Egress]
egress: [{to: [{ipBlock: {cidr: "::/0"}}]}]`}}},
	{"a named port", [][2]string{{"e2e-px", `
podSelector: {}
ingress: [{ports: [{port: web-81}, {protocol: UDP, port: dns-80}]}]`}}},
	{"a named port of peers", [][2]string{{"e2e-px", `
podSelector: {}
policyTypes: [Egress]
egress: [{to: [{namespaceSelector: {matchLabels: {ns: "y"}}}], ports: [{port: web-80}]}, {to: [{ipBlock: {cidr: %4/32}}], ports: [{port: web-81}]}]`}}},
	{"a range of ports", [][2]string{{"e2e-py", `
podSelector: {}
ingress: [{ports: [{port: 81, endPort: 90}, {protocol: UDP, port: 1, endPort: 80}]}]`}}},
	{"egress to pods on a port", [][2]string{{"e2e-px", `
podSelector: {matchLabels: {pod: a}}
policyTypes: [Egress]
egress: [{to: [{namespaceSelector: {matchLabels: {ns: "y"}}, podSelector: {matchLabels: {pod: b}}}], ports: [{port: 81}]}]`}}},
	{"both ends have a say", [][2]string{
		{"e2e-px", `{podSelector: {}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {ns: "y"}}}]}]}`},
		{"e2e-py", `{podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: x}}}], ports: [{port: 80}]}]}`},
	}},
	{"two policies allow more than each", [][2]string{
		{"e2e-px", `{podSelector: {}, ingress: [{ports: [{port: 80}]}]}`},
		{"e2e-px", `{podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{podSelector: {}}]}]}`},
	}},
	{"a host-network pod", [][2]string{{"e2e-px", `
podSelector: {}
ingress: [{from: [{podSelector: {matchLabels: {pod: h}}}]}]`}}},
}

// newMatrix starts the matrix' pods: a and b on each worker, in two namespaces, and h on the host network.
func newMatrix(ctx context.Context) *matrix {
	GinkgoHelper()
	m := &matrix{namespaces: map[string]labels.Set{"e2e-px": {"ns": "x"}, "e2e-py": {"ns": "y"}}, nodes: map[string][]netip.Addr{}}
	for name, set := range m.namespaces {
		makeNamespace(ctx, name)
		DeferCleanup(deleteNamespace, name)
		patch := fmt.Sprintf(`{"metadata":{"labels":{"ns":%q}}}`, set["ns"])
		_, err := suite.Cluster.CoreV1().Namespaces().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		Expect(err).NotTo(HaveOccurred())
	}
	for _, node := range suite.Workers {
		n, err := suite.Cluster.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		m.nodes[node] = cluster.NodeAddrs(n)
	}
	for _, p := range []*corev1.Pod{
		matrixPod("e2e-px", "a", suite.Workers[0], false), matrixPod("e2e-px", "b", suite.Workers[1], false),
		matrixPod("e2e-py", "a", suite.Workers[1], false), matrixPod("e2e-py", "b", suite.Workers[0], false),
		matrixPod("e2e-px", "h", suite.Workers[0], true),
	} {
		running, err := suite.Cluster.Run(ctx, p)
		Expect(err).NotTo(HaveOccurred())
		m.pods = append(m.pods, running)
	}
	return m
}

var _ = Describe("network policies", Ordered, func() {
	var m *matrix
	BeforeAll(func(ctx SpecContext) { m = newMatrix(ctx) }, NodeTimeout(3*time.Minute))

	for _, c := range policyCases {
		It("let through what they say: "+c.name, func(ctx SpecContext) {
			policies := m.apply(ctx, c.policies)
			Eventually(func() []string { return m.differences(ctx, policies) }).WithContext(ctx).WithTimeout(time.Minute).Should(BeEmpty())
			for _, p := range m.pods {
				now, err := suite.Cluster.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
				Expect(err).NotTo(HaveOccurred())
				Expect(cluster.Ready(now)).To(BeTrue(), "probes of %s/%s pass", p.Namespace, p.Name)
			}
		}, SpecTimeout(2*time.Minute))
	}

	It("let a pod reach itself through a Service", func(ctx SpecContext) {
		m.apply(ctx, [][2]string{{"e2e-px", `{podSelector: {}, policyTypes: [Ingress, Egress]}`}})
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "itself"}, Spec: corev1.ServiceSpec{
			Selector: map[string]string{"pod": "a"}, Ports: []corev1.ServicePort{{Port: 80}},
			IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
		}}
		service, err := suite.Cluster.CoreV1().Services("e2e-px").Create(ctx, service, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		for _, ip := range service.Spec.ClusterIPs {
			target := attempt{from: m.pods[0], address: netip.MustParseAddr(ip), port: matrixPorts[0]}
			Eventually(func() ([]bool, error) { return try(ctx, target.from, []attempt{target}) }).WithContext(ctx).
				WithTimeout(20*time.Second).Should(Equal([]bool{true}), ip)
			apartAt(ctx, m.pods[1], m.pods[0], target.target())
		}
	}, SpecTimeout(time.Minute))

	It("close open connections that a change no longer allows", func(ctx SpecContext) {
		server, client := m.pods[0], m.pods[2]
		w := startWatch(ctx, client, tcpTo(server, 80))
		m.apply(ctx, [][2]string{{"e2e-px", `
podSelector: {matchLabels: {pod: a}}
ingress: [{from: [{podSelector: {}}]}]`}})
		for _, f := range w.flows {
			apartAt(ctx, client, m.pods[1], target{tcp, f.target})
		}
		closed := time.Now()
		Expect(pause(ctx, 2*time.Second)).To(Succeed())
		w.interrupt(ctx)
		for _, f := range w.flows {
			out, err := suite.Cluster.Exec(ctx, client, "cat", f.file)
			Expect(err).NotTo(HaveOccurred())
			f.Flow, _ = oracle.Exchange(out) // it may have ended by itself
			Expect(f.Answers).NotTo(BeEmpty(), f.name)
			Expect(f.AnsweredAfter(closed)).To(BeFalse(), "%s: %s", f.name, f.Flow)
		}
	}, SpecTimeout(2*time.Minute))

	It("isolate a pod from its first packet", func(ctx SpecContext) {
		m.apply(ctx, [][2]string{{"e2e-px", `podSelector: {matchLabels: {pod: late}}`}})
		closedFromTheStart(ctx, matrixPod("e2e-px", "late", suite.Workers[0], false), matrixPod("e2e-px", "late-open", suite.Workers[0], false), m.pods[2])
	}, SpecTimeout(2*time.Minute))

	It("drop nothing that they allow before and after a change", func(ctx SpecContext) {
		server, client := m.pods[0], m.pods[2]
		np := m.apply(ctx, [][2]string{{"e2e-px", `
podSelector: {matchLabels: {pod: a}}
ingress: [{from: [{namespaceSelector: {matchLabels: {ns: "y"}}}]}]`}})[0]
		address := cluster.PodAddrs(server)[0]
		settled := func(from *corev1.Pod, port int, passes bool) {
			a := attempt{from: from, address: address, port: matrixPorts[port]}
			Eventually(func() ([]bool, error) { return try(ctx, from, []attempt{a}) }).WithContext(ctx).WithTimeout(20 * time.Second).Should(Equal([]bool{passes}))
		}
		settled(m.pods[1], 0, false)
		watching := watchAllowed(ctx, client, server, 80)
		for _, step := range []struct {
			spec   string
			from   *corev1.Pod
			port   int
			passes bool
			log    string
		}{
			{`{podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: "y"}}, podSelector: {matchLabels: {pod: a}}}]}]}`,
				m.pods[3], 0, false, "false"},
			{`{podSelector: {matchExpressions: [{key: pod, operator: In, values: [a]}]}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {pod: a}}}], ports: [{port: web-80}]}]}`,
				client, 1, false, "true"},
			{`{podSelector: {}, ingress: [{ports: [{port: 1, endPort: 100}]}]}`,
				m.pods[3], 0, true, "false"},
		} {
			np.Spec = networkingv1.NetworkPolicySpec{}
			Expect(yaml.UnmarshalStrict([]byte(step.spec), &np.Spec)).To(Succeed())
			np.Annotations = map[string]string{"ovn.kubernetes.io/enable_log": step.log}
			var err error
			np, err = suite.Cluster.NetworkingV1().NetworkPolicies(np.Namespace).Update(ctx, np, metav1.UpdateOptions{})
			Expect(err).NotTo(HaveOccurred())
			settled(step.from, step.port, step.passes)
		}
		watching(ctx)
	}, SpecTimeout(3*time.Minute))
})

// apply creates policies that go with the spec.
func (m *matrix) apply(ctx context.Context, list [][2]string) []*networkingv1.NetworkPolicy {
	GinkgoHelper()
	b := cluster.PodAddrs(m.pods[1])
	fill := strings.NewReplacer("%4", b[0].String(), "%6", b[1].String())
	var policies []*networkingv1.NetworkPolicy
	for i, entry := range list {
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: entry[0], Name: fmt.Sprint("case-", i)}}
		Expect(yaml.UnmarshalStrict([]byte(fill.Replace(entry[1])), &np.Spec)).To(Succeed())
		of := suite.Cluster.NetworkingV1().NetworkPolicies(np.Namespace)
		np, err := of.Create(ctx, np, metav1.CreateOptions{})
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func(ctx SpecContext) { Expect(of.Delete(ctx, np.Name, metav1.DeleteOptions{})).To(Succeed()) })
		policies = append(policies, np)
	}
	return policies
}
