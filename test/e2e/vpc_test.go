// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/test/cluster"
)

var _ = Describe("custom VPCs", Ordered, ContinueOnFailure, func() {
	BeforeAll(func(ctx SpecContext) {
		for _, name := range []string{"blue", "red", "green", "inspected"} {
			makeNamespace(ctx, name)
			DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, name) }, NodeTimeout(4*time.Minute))
		}
	})

	It("may have the same addresses, are apart, and reach one another over a link", Label(smoke), func(ctx SpecContext) {
		applyVpcs(ctx, "vpc.yaml")
		applyVpcs(ctx, "vpc_peering.yaml")
		near, far := suite.Workers[0], suite.Workers[1]
		blueServer := tenantPod(ctx, "blue", "server", near, "10.50.0.20", "fd00:10:50::20")
		redServer := tenantPod(ctx, "red", "server", far, "10.50.0.20", "fd00:10:50::20")
		blueClient := tenantPod(ctx, "blue", "client", far, "10.50.0.10", "fd00:10:50::10")
		redClient := tenantPod(ctx, "red", "client", near, "10.50.0.10", "fd00:10:50::10")
		green := tenantPod(ctx, "green", "client", near, "10.51.0.10", "fd00:10:51::10")
		onlyBlue := tenantPod(ctx, "blue", "alone", near, "10.50.0.30", "fd00:10:50::30")
		for _, a := range addressesOf(redServer) {
			Eventually(reached).WithContext(ctx).WithArguments(blueClient, a).WithTimeout(20 * time.Second).Should(Equal("blue-server"))
			Eventually(reached).WithContext(ctx).WithArguments(redClient, a).WithTimeout(20 * time.Second).Should(Equal("red-server"))
			Eventually(reached).WithContext(ctx).WithArguments(green, a).WithTimeout(20*time.Second).Should(Equal("red-server"), "over the link")
		}
		By("from a VPC with the same addresses")
		apart(ctx, redClient, onlyBlue, blueClient)
		By("from a VPC with a link to another one")
		apart(ctx, green, onlyBlue, blueClient)
		By("from a VPC without a link")
		apart(ctx, blueClient, green, redClient)
		for _, a := range cluster.PodAddrs(redServer) {
			Expect(connectsAtOnce(ctx, fromPod(green), netip.AddrPortFrom(a, cluster.HTTPPort))).To(Equal("red-server"))
		}
		Expect(addressesOf(blueServer)).To(Equal(addressesOf(redServer)))

		vpc := &kubeovnv1.Vpc{}
		Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: "green"}, vpc)).To(Succeed())
		base := vpc.DeepCopy()
		vpc.Spec.VpcPeerings = nil
		Expect(suite.Objects.Patch(ctx, vpc, client.MergeFrom(base))).To(Succeed())
		apart(ctx, green, redServer, redClient)
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: "red"}, vpc)).To(Succeed())
			g.Expect(meta.FindStatusCondition(vpc.Status.Conditions, kubeovnv1.ConditionReady).Message).To(ContainSubstring("VPC green has no peering with this one"))
		}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
	}, SpecTimeout(8*time.Minute))

	It("send traffic through an appliance as a policy and a route say", Label(smoke), func(ctx SpecContext) {
		applyVpcs(ctx, "vpc_routes.yaml")
		near, far := suite.Workers[0], suite.Workers[1]
		office := tenantPod(ctx, "inspected", "office", near, "10.52.0.10", "fd00:10:52::10")
		server := podIn(ctx, "inspected", "server", far, "server-net", "10.54.0.10", "fd00:10:54::10")
		appliance := podIn(ctx, "inspected", "appliance", far, "appliance-net", "10.53.0.5", "fd00:10:53::5")
		inAppliance := func(command string) string {
			GinkgoHelper()
			out, err := suite.Cluster.Exec(ctx, appliance, "sh", "-c", command)
			Expect(err).NotTo(HaveOccurred())
			return out
		}
		forward := func(on int) {
			GinkgoHelper()
			inAppliance(fmt.Sprintf("echo %[1]d > /proc/sys/net/ipv4/ip_forward; echo %[1]d > /proc/sys/net/ipv6/conf/all/forwarding", on))
		}
		forward(0)
		apart(ctx, office, server, server) // while the appliance does not forward
		forward(1)
		for _, a := range addressesOf(server) {
			Eventually(reached).WithContext(ctx).WithArguments(office, a).WithTimeout(20*time.Second).Should(Equal("inspected-server"), "through the appliance")
		}
		// The default route leads to the appliance, which has these addresses itself.
		second := podIn(ctx, "inspected", "second", near, "appliance-net", "10.53.0.6", "fd00:10:53::6")
		for _, pod := range []*corev1.Pod{appliance, second} {
			for _, a := range slices.Concat(beyond, shared) {
				_, err := suite.Cluster.Exec(ctx, pod, "ip", "addr", "add", a.String(), "dev", "lo")
				Expect(err).NotTo(HaveOccurred())
			}
		}
		expectAnswers(ctx, office, "inspected-appliance")
		expectAnswers(ctx, server, "inspected-appliance")
		routesOfOnePod(ctx, office, server)
		routesByTableAndSource(ctx, office, server)
		policiesThatDecide(ctx, office, server)
	}, SpecTimeout(8*time.Minute))
})

// applyVpcs applies a sample of Vpcs and Subnets unchanged, and deletes all its objects at once when the spec ends.
func applyVpcs(ctx context.Context, file string) {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join("..", "..", "config", "samples", file))
	Expect(err).NotTo(HaveOccurred())
	var objects []client.Object
	DeferCleanup(func(ctx SpecContext) {
		for _, o := range objects {
			if vpc, ok := o.(*kubeovnv1.Vpc); ok {
				for _, name := range vpc.Spec.Namespaces {
					Expect(suite.Cluster.CoreV1().Pods(name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})).To(Succeed())
				}
			}
		}
		for _, o := range objects {
			Expect(client.IgnoreNotFound(suite.Objects.Delete(ctx, o))).To(Succeed())
		}
		for _, o := range objects {
			Eventually(func() bool {
				return apierrors.IsNotFound(suite.Objects.Get(ctx, client.ObjectKeyFromObject(o), o))
			}).WithContext(ctx).WithTimeout(2*time.Minute).WithPolling(500*time.Millisecond).Should(BeTrue(), "%s is not gone", o.GetName())
		}
	}, NodeTimeout(4*time.Minute))
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var kind metav1.TypeMeta
		Expect(yaml.Unmarshal([]byte(document), &kind)).To(Succeed())
		var o client.Object = &kubeovnv1.Vpc{}
		if kind.Kind == "Subnet" {
			o = &kubeovnv1.Subnet{}
		}
		Expect(yaml.UnmarshalStrict([]byte(document), o)).To(Succeed())
		objects = append(objects, o)
		Expect(suite.Objects.Create(ctx, o)).To(Succeed())
	}
	for _, o := range objects {
		Eventually(func(g Gomega) {
			g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(o), o)).To(Succeed())
			var conditions []metav1.Condition
			switch o := o.(type) {
			case *kubeovnv1.Vpc:
				conditions = o.Status.Conditions
			case *kubeovnv1.Subnet:
				conditions = o.Status.Conditions
			}
			g.Expect(meta.IsStatusConditionTrue(conditions, kubeovnv1.ConditionReady)).To(BeTrue(), "%s: %v", o.GetName(), conditions)
		}).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
	}
}

// tenantPod runs a pod in the default subnet of its namespace's VPC.
func tenantPod(ctx context.Context, namespace, name, node, v4, v6 string) *corev1.Pod {
	GinkgoHelper()
	return podIn(ctx, namespace, name, node, "", v4, v6)
}

// podIn runs a privileged pod with these addresses. It has no readiness probe, so that it does not depend on the kubelet's probes.
func podIn(ctx context.Context, namespace, name, node, subnet, v4, v6 string) *corev1.Pod {
	GinkgoHelper()
	pod := cluster.Server(namespace, namespace+"-"+name, node)
	pod.Annotations = map[string]string{kubeovnv1.AnnotationIPAddress.Key(): v4 + "," + v6}
	if subnet != "" {
		pod.Annotations[kubeovnv1.AnnotationLogicalSwitch.Key()] = subnet
	}
	privileged := true
	pod.Spec.Containers[0].ReadinessProbe = nil
	pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &privileged}
	running, err := suite.Cluster.Run(ctx, pod)
	Expect(err).NotTo(HaveOccurred())
	return running
}

func addressesOf(pod *corev1.Pod) []string {
	var addresses []string
	for _, a := range cluster.PodAddrs(pod) {
		addresses = append(addresses, a.String())
	}
	return addresses
}

// reached returns the name of the pod that answers at an address, or "" if none does.
func reached(ctx context.Context, from *corev1.Pod, address string) string {
	url := "http://" + net.JoinHostPort(address, strconv.Itoa(cluster.HTTPPort)) + "/hostname"
	out, err := suite.Cluster.Exec(ctx, from, "curl", "--silent", "--globoff", "--max-time", "3", url)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(out)
}
