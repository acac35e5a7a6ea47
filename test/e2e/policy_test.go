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
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/test/cluster"
	"github.com/kiln-net/kiln/test/oracle"
)

// policyCases are policies by namespace, in YAML. %4 and %6 stand for the addresses of e2e-px/b, %n4 and %n6 for the addresses of
// e2e-px/h's node.
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
policyTypes: [Ingress, Egress]
ingress: [{from: [{podSelector: {matchLabels: {pod: h}}}]}]
egress: [{to: [{podSelector: {matchLabels: {pod: h}}}]}]`}}},
	{"the addresses of a node", [][2]string{{"e2e-px", `
podSelector: {}
policyTypes: [Ingress, Egress]
ingress: [{from: [{ipBlock: {cidr: %n4/32}}, {ipBlock: {cidr: "%n6/128"}}]}]
egress: [{to: [{ipBlock: {cidr: %n4/32}}, {ipBlock: {cidr: "%n6/128"}}]}]`}}},
}

// smokeCases are the cases of the gate: one for each kind of rule.
var smokeCases = []string{"nothing passes", "a pod of the namespace on a port", "networks with exceptions", "a named port of peers", "both ends have a say"}

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
		It("allow as specified: "+c.name, smokeIf(slices.Contains(smokeCases, c.name)), func(ctx SpecContext) {
			policies := m.apply(ctx, c.policies)
			Eventually(func() []string { return m.differences(ctx, policies) }).WithContext(ctx).WithTimeout(time.Minute).Should(BeEmpty())
			for _, p := range m.pods {
				now, err := suite.Cluster.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
				Expect(err).NotTo(HaveOccurred())
				Expect(cluster.Ready(now)).To(BeTrue(), "probes of %s/%s pass", p.Namespace, p.Name)
			}
		}, SpecTimeout(2*time.Minute))
	}

	It("let a pod reach itself through a Service", Label(smoke), func(ctx SpecContext) {
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

	It("close open connections that a change no longer allows, in both directions, and log dropped packets", func(ctx SpecContext) {
		begun := time.Now()
		closing := []struct {
			direction string
			from, to  *corev1.Pod
			friend    *corev1.Pod
			policy    [2]string
			// node is the node that drops the packets, and rule the name of the rule in that node's log.
			node, rule string
			*watch
		}{
			{
				direction: "ingress", from: m.pods[2], to: m.pods[0], friend: m.pods[1], node: m.pods[0].Spec.NodeName, rule: "np/case-0.e2e-px/ingress/default",
				policy: [2]string{"e2e-px", `{podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{podSelector: {}}]}]}`},
			},
			{
				direction: "egress", from: m.pods[3], to: m.pods[1], friend: m.pods[0], node: m.pods[3].Spec.NodeName, rule: "np/case-1.e2e-py/egress/default",
				policy: [2]string{"e2e-py", `{podSelector: {matchLabels: {pod: b}}, policyTypes: [Egress], egress: [{to: [{podSelector: {}}]}]}`},
			},
		}
		var policies [][2]string
		for i := range closing {
			closing[i].watch = startWatch(ctx, fromPod(closing[i].from), tcpTo(closing[i].to, 80))
			policies = append(policies, closing[i].policy)
		}
		for _, np := range m.apply(ctx, policies) {
			base := np.DeepCopy()
			np.Annotations = map[string]string{"ovn.kubernetes.io/enable_log": "true"}
			Expect(suite.Objects.Patch(ctx, np, client.MergeFrom(base))).To(Succeed())
		}
		for _, c := range closing {
			var targets []target
			for _, f := range c.flows {
				targets = append(targets, target{tcp, f.target})
			}
			apartAt(ctx, c.from, c.friend, targets...)
		}
		// Packets of an open connection match cached flows in Open vSwitch until these are revalidated: at least twice a second on
		// an idle machine (ovs-vswitchd.conf.db(5), max-revalidator).
		apart := time.Now()
		lastAnswer := func(g Gomega, from *corev1.Pod, f *watched) time.Time {
			out, err := suite.Cluster.Exec(ctx, from, "cat", f.file)
			g.Expect(err).NotTo(HaveOccurred())
			f.Flow, _ = oracle.Exchange(out) // the connection may have ended by itself
			g.Expect(f.Answers).NotTo(BeEmpty())
			return f.Answers[len(f.Answers)-1].At
		}
		for _, c := range closing {
			for _, f := range c.flows {
				Eventually(func(g Gomega) {
					g.Expect(lastAnswer(g, c.from, f)).To(BeTemporally("<", time.Now().Add(-2*time.Second)))
				}).WithContext(ctx).
					WithTimeout(30*time.Second).Should(Succeed(), "%s: %s", c.direction, f.name)
				AddReportEntry(fmt.Sprintf("new connections refused → the last answer, %s, %s", c.direction, f.name), f.Answers[len(f.Answers)-1].At.Sub(apart).String())
			}
		}
		silent := time.Now()
		By("looking at the log of Open vSwitch's pod")
		for _, c := range closing {
			for _, address := range cluster.PodAddrs(c.from) {
				Eventually(logged).WithContext(ctx).WithArguments(c.node, begun, `name="`+c.rule+`"`, "verdict=drop", "_src="+address.String()+",").
					WithTimeout(20*time.Second).ShouldNot(BeEmpty(), "%s: packets from %s in the log of node %s", c.direction, address, c.node)
			}
			title, _, _ := strings.Cut(c.rule, "/"+c.direction)
			Expect(logged(ctx, c.node, begun, `name="`+title+"/", "verdict=allow")).To(BeEmpty(), "without log_acl_actions")
			for _, f := range c.flows {
				Expect(lastAnswer(Default, c.from, f)).To(BeTemporally("<", silent), "%s: %s answers again: %s", c.direction, f.name, f.Flow)
			}
			c.interrupt(ctx)
		}
	}, SpecTimeout(2*time.Minute))

	It("isolate a pod from its first packet", Label(smoke), func(ctx SpecContext) {
		m.apply(ctx, [][2]string{{"e2e-px", `podSelector: {matchLabels: {pod: late}}`}})
		closedFromTheStart(ctx, matrixPod("e2e-px", "late", suite.Workers[0], false), matrixPod("e2e-px", "late-open", suite.Workers[0], false), m.pods[2])
	}, SpecTimeout(2*time.Minute))

	It("drop nothing that they allow before and after a change", Label(timed), func(ctx SpecContext) {
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

// apply creates policies. They are deleted when the spec ends.
func (m *matrix) apply(ctx context.Context, list [][2]string) []*networkingv1.NetworkPolicy {
	GinkgoHelper()
	b := cluster.PodAddrs(m.pods[1])
	node := m.nodes[suite.Workers[0]]
	node4, _ := cluster.InFamilyOf(node, b[0])
	node6, _ := cluster.InFamilyOf(node, b[1])
	fill := strings.NewReplacer("%4", b[0].String(), "%6", b[1].String(), "%n4", node4.String(), "%n6", node6.String())
	var policies []*networkingv1.NetworkPolicy
	for i, entry := range list {
		policies = append(policies, applyPolicy(ctx, entry[0], fmt.Sprint("case-", i), fill.Replace(entry[1])))
	}
	return policies
}

// applyPolicy creates a policy. It is deleted when the spec ends.
func applyPolicy(ctx context.Context, namespace, name, policy string) *networkingv1.NetworkPolicy {
	GinkgoHelper()
	np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	Expect(yaml.UnmarshalStrict([]byte(policy), &np.Spec)).To(Succeed())
	of := suite.Cluster.NetworkingV1().NetworkPolicies(namespace)
	np, err := of.Create(ctx, np, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func(ctx SpecContext) { Expect(of.Delete(ctx, np.Name, metav1.DeleteOptions{})).To(Succeed()) })
	return np
}

// logged returns the lines about packets in the log of a node's ovn-controller that were written since a time and contain all of
// the words.
func logged(ctx context.Context, node string, since time.Time, words ...string) ([]string, error) {
	pods, err := suite.Cluster.PodsOf(ctx, "ovs-ovn")
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
	if i < 0 {
		return nil, fmt.Errorf("no pod of ovs-ovn is on node %s", node)
	}
	text, err := suite.Cluster.CoreV1().Pods(pods[i].Namespace).GetLogs(pods[i].Name, &corev1.PodLogOptions{SinceTime: &metav1.Time{Time: since}}).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the log of %s: %w", pods[i].Name, err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "acl_log") && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			lines = append(lines, line)
		}
	}
	return lines, nil
}
