// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
	"github.com/kiln-net/kiln/test/cluster"
)

const (
	symptomsNamespace = "e2e-symptoms"
	symptomsElsewhere = "e2e-symptoms-apart"
)

// symptom makes a fault and returns a command that finds its cause. It registers what undoes the fault.
type symptom func(ctx context.Context, from, to *corev1.Pod) (look func(ctx context.Context) (string, error))

// looks runs a command of the plugin, whose exit code is the verdict.
func looks(arguments ...string) func(ctx context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		out, _ := ko(ctx, arguments...)
		return out, nil
	}
}

func nameOf(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// looksBetween traces HTTP between two pods.
func looksBetween(from, to *corev1.Pod) func(ctx context.Context) (string, error) {
	return looks("trace", nameOf(from), nameOf(to), fmt.Sprint(cluster.HTTPPort))
}

// symptomService makes a Service for a pod, or for no pod.
func symptomService(ctx context.Context, selector map[string]string, change func(*corev1.ServiceSpec)) *corev1.Service {
	GinkgoHelper()
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: symptomsNamespace, Name: "web"}, Spec: corev1.ServiceSpec{
		Selector: selector, IPFamilyPolicy: new(corev1.IPFamilyPolicyPreferDualStack),
		Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(cluster.HTTPPort)}},
	}}
	if change != nil {
		change(&service.Spec)
	}
	return createService(ctx, service)
}

// apartFrom makes a Subnet for a namespace of its own, and a pod there.
func apartFrom(ctx context.Context, vpc string, spec kubeovnv1.SubnetSpec) *corev1.Pod {
	GinkgoHelper()
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: symptomsElsewhere}, Spec: spec}
	subnet.Spec.Vpc, subnet.Spec.CIDRBlock, subnet.Spec.Namespaces = vpc, "10.152.0.0/24,fd00:10:152::/112", []string{symptomsElsewhere}
	Expect(suite.Objects.Create(ctx, subnet)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { deleteObjects(ctx, subnet) }, NodeTimeout(2*time.Minute))
	Eventually(func() (bool, error) { return inForce(ctx, subnet.Name) }).WithContext(ctx).WithTimeout(30 * time.Second).Should(BeTrue())
	pod := serve(ctx, symptomsElsewhere, "there", 1)
	DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, symptomsElsewhere) }, NodeTimeout(3*time.Minute))
	return pod
}

// symptoms are the rows of docs/operations/symptoms.md, in their order.
var symptoms = []symptom{
	func(ctx context.Context, from, to *corev1.Pod) func(ctx context.Context) (string, error) {
		applyPolicy(ctx, to.Namespace, "closed", `{podSelector: {matchLabels: {app: to}}, policyTypes: [Ingress]}`)
		return looksBetween(from, to)
	},
	func(ctx context.Context, from, _ *corev1.Pod) func(ctx context.Context) (string, error) {
		return looksBetween(from, apartFrom(ctx, "", kubeovnv1.SubnetSpec{Private: true}))
	},
	func(ctx context.Context, from, _ *corev1.Pod) func(ctx context.Context) (string, error) {
		vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "e2e-symptoms-vpc"}, Spec: kubeovnv1.VpcSpec{Namespaces: []string{symptomsElsewhere}, DefaultSubnet: symptomsElsewhere}}
		Expect(suite.Objects.Create(ctx, vpc)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { deleteObjects(ctx, vpc) }, NodeTimeout(2*time.Minute))
		return looksBetween(from, apartFrom(ctx, vpc.Name, kubeovnv1.SubnetSpec{}))
	},
	func(ctx context.Context, from, _ *corev1.Pod) func(ctx context.Context) (string, error) {
		service := symptomService(ctx, map[string]string{"app": "misspelt"}, nil)
		return looks("trace", nameOf(from), "service/"+service.Namespace+"/"+service.Name)
	},
	func(ctx context.Context, from, _ *corev1.Pod) func(ctx context.Context) (string, error) {
		group := &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: symptomsNamespace}, Spec: kubeovnv1.SecurityGroupSpec{AllowedNamespaces: []kubeovnv1.AllowedNamespace{symptomsNamespace}}}
		Expect(suite.Objects.Create(ctx, group)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { deleteObjects(ctx, group) }, NodeTimeout(time.Minute))
		pod := cluster.Server(symptomsNamespace, "grouped", suite.Workers[1])
		pod.Annotations = map[string]string{keyGroups: group.Name}
		pod, err := suite.Cluster.Run(ctx, pod)
		Expect(err).NotTo(HaveOccurred())
		return looksBetween(from, pod)
	},
	func(ctx context.Context, from, _ *corev1.Pod) func(ctx context.Context) (string, error) {
		applyPolicy(ctx, from.Namespace, "no-egress", `{podSelector: {matchLabels: {app: from}}, policyTypes: [Egress]}`)
		return looks("trace", nameOf(from), "kube-dns.kube-system.svc", "udp", "53")
	},
	func(ctx context.Context, _, _ *corev1.Pod) func(ctx context.Context) (string, error) {
		return looks("trace", nameOf(apartFrom(ctx, "", kubeovnv1.SubnetSpec{})), "203.0.113.9", "443")
	},
	func(ctx context.Context, _, to *corev1.Pod) func(ctx context.Context) (string, error) {
		service := symptomService(ctx, to.Labels, func(s *corev1.ServiceSpec) {
			s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, corev1.ServiceExternalTrafficPolicyLocal
		})
		return looks("trace", "203.0.113.9", "node//"+suite.Workers[0], fmt.Sprint(service.Spec.Ports[0].NodePort))
	},
	func(ctx context.Context, from, _ *corev1.Pod) func(ctx context.Context) (string, error) {
		pod := cluster.Server(symptomsNamespace, "waits", suite.Workers[0])
		pod.Annotations = map[string]string{keyAddress: strings.Join(addressesOf(from), ",")}
		Expect(suite.Objects.Create(ctx, pod)).To(Succeed())
		return func(ctx context.Context) (string, error) {
			events, err := suite.Cluster.CoreV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod.Name})
			if err != nil {
				return "", err
			}
			var text strings.Builder
			for i := range events.Items {
				fmt.Fprintln(&text, events.Items[i].Reason, events.Items[i].Message)
			}
			return text.String(), nil
		}
	},
	func(ctx context.Context, from, to *corev1.Pod) func(ctx context.Context) (string, error) {
		replacePort(ctx, to)
		return looksBetween(from, to)
	},
}

// replacePort makes another program replace the port of a pod in Open vSwitch, and returns its name. The agent does not repair it: the new port has no record of the pod.
func replacePort(ctx context.Context, pod *corev1.Pod) string {
	GinkgoHelper()
	port := vsctl(ctx, pod.Spec.NodeName, "--bare", "--columns=name", "find", "Interface", "external_ids:pod_name="+pod.Name, "external_ids:pod_namespace="+pod.Namespace)
	Expect(port).NotTo(BeEmpty())
	vsctl(ctx, pod.Spec.NodeName, "del-port", "br-int", port, "--", "add-port", "br-int", port)
	DeferCleanup(func(ctx SpecContext) { vsctl(ctx, pod.Spec.NodeName, "--if-exists", "del-port", "br-int", port) }, NodeTimeout(time.Minute))
	return port
}

func TestEachSymptomHasASpec(t *testing.T) {
	rows := mistakes.Symptoms.Read(t)
	if len(rows) != len(symptoms) {
		t.Errorf("%s has %d rows, and %d have specs", mistakes.Symptoms, len(rows), len(symptoms))
	}
	for i, row := range rows {
		if row.Number != i+1 || len(row.Seen) == 0 {
			t.Errorf("row %d has the number %d and %d messages", i+1, row.Number, len(row.Seen))
		}
	}
}

var _ = Describe("symptoms", func() {
	for i, makeFault := range symptoms {
		It(fmt.Sprintf("of row %d have the cause that the page says", i+1), func(ctx SpecContext) {
			row := mistakes.Symptoms.Of(GinkgoTB(), i+1)
			from, to := serve(ctx, symptomsNamespace, "from", 0), serve(ctx, symptomsNamespace, "to", 1)
			DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, symptomsNamespace) }, NodeTimeout(3*time.Minute))
			look := makeFault(ctx, from, to)
			Eventually(func(g Gomega) {
				seen, err := look(ctx)
				g.Expect(err).NotTo(HaveOccurred())
				for _, message := range row.Seen {
					g.Expect(message.In(seen)).To(BeTrue(), "want %q, and users see:\n%s", message.Text, seen)
				}
			}).WithContext(ctx).WithTimeout(2 * time.Minute).Should(Succeed())
		}, SpecTimeout(5*time.Minute))
	}
})
