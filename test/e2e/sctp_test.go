// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	_ "embed"
	"net/netip"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/test/cluster"
)

// sctpProgram is a server and a client. They use raw sockets where the kernel has no SCTP.
//
//go:embed testdata/sctp.py
var sctpProgram string

// sctpPod returns a pod that answers SCTP on the ports 9998 and 9999.
func sctpPod(name string, worker int) *corev1.Pod {
	pod := cluster.Server("e2e-sctp", name, suite.Workers[worker])
	end := *pod.Spec.Containers[0].DeepCopy()
	end.Name, end.Command, end.Args, end.ReadinessProbe = "sctp", []string{"python3", "-c", sctpProgram, "serve", "9998", "9999"}, nil, nil
	pod.Spec.Containers = append(pod.Spec.Containers, end)
	return pod
}

// associates checks that SCTP to each of the addresses gets the wanted reply: "answered" or "silence".
func associates(ctx context.Context, from *corev1.Pod, to []netip.Addr, port int, want string) {
	GinkgoHelper()
	for _, address := range to {
		ask := func() (string, error) {
			out, err := suite.Cluster.Exec(ctx, from, "python3", "-c", sctpProgram, "ask", address.String(), strconv.Itoa(port))
			return strings.TrimSpace(out), err
		}
		Eventually(ask).WithContext(ctx).WithTimeout(20*time.Second).Should(Equal(want), "%s to %s:%d", from.Name, address, port)
		if want == "silence" {
			Consistently(ask).WithContext(ctx).WithTimeout(2*time.Second).Should(Equal(want), "%s to %s:%d", from.Name, address, port)
		}
	}
}

var _ = Describe("SCTP", Ordered, func() {
	var server, client *corev1.Pod

	BeforeAll(func(ctx SpecContext) {
		makeNamespace(ctx, "e2e-sctp")
		DeferCleanup(deleteNamespace, "e2e-sctp")
		var err error
		server, err = suite.Cluster.Run(ctx, sctpPod("server", 0))
		Expect(err).NotTo(HaveOccurred())
		client, err = suite.Cluster.Run(ctx, sctpPod("client", 1))
		Expect(err).NotTo(HaveOccurred())
	}, NodeTimeout(2*time.Minute))

	It("passes where a policy has its port", func(ctx SpecContext) {
		associates(ctx, client, cluster.PodAddrs(server), 9998, "answered")
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "e2e-sctp", Name: "sctp"}}
		Expect(yaml.UnmarshalStrict([]byte(`
podSelector: {matchLabels: {app: server}}
ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{protocol: SCTP, port: 9999}, {port: 9998}]}]
`), &np.Spec)).To(Succeed())
		Expect(suite.Objects.Create(ctx, np)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { Expect(suite.Objects.Delete(ctx, np)).To(Succeed()) })
		associates(ctx, client, cluster.PodAddrs(server), 9998, "silence") // TCP only
		associates(ctx, client, cluster.PodAddrs(server), 9999, "answered")
	}, SpecTimeout(2*time.Minute))

	It("passes a Service, to another port", func(ctx SpecContext) {
		service := createService(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "e2e-sctp", Name: "sctp"},
			Spec: corev1.ServiceSpec{
				Selector: map[string]string{"app": "server"}, IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
				Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolSCTP, Port: 38412, TargetPort: intstr.FromInt32(9999)}},
			},
		})
		var fronts []netip.Addr
		for _, ip := range service.Spec.ClusterIPs {
			fronts = append(fronts, netip.MustParseAddr(ip))
		}
		associates(ctx, client, fronts, 38412, "answered")
		associates(ctx, client, fronts, 38413, "silence")
	}, SpecTimeout(2*time.Minute))
})
