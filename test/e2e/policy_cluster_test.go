// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/test/cluster"
)

var _ = Describe("cluster-wide policies", func() {
	It("are followed once their kind is defined, and decide before and behind NetworkPolicies", Label(smoke), func(ctx SpecContext) {
		define(ctx, "", "clusternetworkpolicies")
		web, neighbour := serve(ctx, "e2e-tenant", "web", 0), serve(ctx, "e2e-tenant", "neighbour", 1)
		stranger, monitor := serve(ctx, "e2e-strangers", "stranger", 1), serve(ctx, "monitoring", "monitor", 0)
		for _, name := range []string{"e2e-tenant", "e2e-strangers", "monitoring"} {
			DeferCleanup(deleteNamespace, name)
		}
		label := func(value string) { tenant(ctx, "e2e-tenant", value) }
		policy := clusterPolicies(ctx, "clusternetworkpolicy.yaml", clusterPolicyOf("v1alpha2", "ClusterNetworkPolicy", "tenants"))[0]
		expectReach(ctx, stranger, web)

		By("making the namespace a tenant")
		label(`"yes"`)
		apart(ctx, stranger, web, neighbour)
		expectReach(ctx, monitor, web)
		expectReach(ctx, neighbour, web)
		readyPolicy(ctx, policy)

		By("letting the tenant's own policy decide about passed traffic")
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "e2e-tenant", Name: "own"}}
		Expect(yaml.UnmarshalStrict([]byte(`{podSelector: {}, ingress: [{from: [{namespaceSelector: {}, podSelector: {matchLabels: {app: stranger}}}]}]}`), &np.Spec)).To(Succeed())
		Expect(suite.Objects.Create(ctx, np)).To(Succeed())
		apart(ctx, monitor, web, web)
		apart(ctx, stranger, web, web) // the tenant cannot allow it
		Expect(suite.Objects.Delete(ctx, np)).To(Succeed())
		expectReach(ctx, monitor, web)

		By("making the namespace none")
		label("null")
		expectReach(ctx, stranger, web)
		label(`"yes"`)
		apart(ctx, stranger, web, neighbour)
		Expect(suite.Objects.Delete(ctx, policy)).To(Succeed())
		expectReach(ctx, stranger, web)
	}, SpecTimeout(4*time.Minute))

	It("of the first versions decide by action, and their baseline last", func(ctx SpecContext) {
		define(ctx, "v0.1.7", "adminnetworkpolicies", "baselineadminnetworkpolicies")
		server := inGroups("web", "", 0)
		server.Namespace = "e2e-tenant-a"
		server.Spec.Containers[1].Args = []string{"netexec", "--http-port=8081", "--udp-port=-1"}
		neighbour := serve(ctx, "e2e-tenant-a", "neighbour", 1)
		stranger, monitor := serve(ctx, "e2e-strangers", "stranger", 1), serve(ctx, "monitoring", "monitor", 0)
		for _, name := range []string{"e2e-tenant-a", "e2e-strangers", "monitoring"} {
			DeferCleanup(deleteNamespace, name)
		}
		web, err := suite.Cluster.Run(ctx, server)
		Expect(err).NotTo(HaveOccurred())
		both := clusterPolicies(ctx, "adminnetworkpolicy.yaml", clusterPolicyOf("v1alpha1", "AdminNetworkPolicy", "tenants"),
			clusterPolicyOf("v1alpha1", "BaselineAdminNetworkPolicy", "default"))
		expect := func(from *corev1.Pod, http, debug bool) {
			GinkgoHelper()
			connects(ctx, from, web, corev1.ProtocolTCP, cluster.HTTPPort, http)
			connects(ctx, from, web, corev1.ProtocolTCP, 8081, debug)
		}
		expect(stranger, true, true)
		tenant(ctx, "e2e-tenant-a", `"yes"`)
		expect(stranger, false, false)
		expect(monitor, true, true)
		expect(neighbour, true, false)
		for _, policy := range both {
			readyPolicy(ctx, policy)
		}

		By("letting the tenant's own policy decide about passed traffic, before the baseline")
		np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "e2e-tenant-a", Name: "own"}}
		Expect(yaml.UnmarshalStrict([]byte(`{podSelector: {}, ingress: [{from: [{namespaceSelector: {}}], ports: [{port: 8081}]}]}`), &np.Spec)).To(Succeed())
		Expect(suite.Objects.Create(ctx, np)).To(Succeed())
		expect(neighbour, false, true)
		expect(stranger, false, false)
		expect(monitor, true, true)
		Expect(suite.Objects.Delete(ctx, np)).To(Succeed())
		expect(neighbour, true, false)

		for _, policy := range both {
			Expect(suite.Objects.Delete(ctx, policy)).To(Succeed())
		}
		expect(neighbour, true, true)
		expect(stranger, true, true)
	}, SpecTimeout(5*time.Minute))
})

// define installs CRDs of sigs.k8s.io/network-policy-api, by default of the version in go.mod.
func define(ctx context.Context, version string, kinds ...string) {
	GinkgoHelper()
	const module = "sigs.k8s.io/network-policy-api"
	command := []string{"list", "-m", "-f", "{{.Dir}}", module}
	if version != "" { // other versions must be downloaded
		command = []string{"mod", "download", "-json", module + "@" + version}
	}
	out, err := osexec.CommandContext(ctx, "go", command...).Output()
	Expect(err).NotTo(HaveOccurred())
	dir := strings.TrimSpace(string(out))
	if version != "" {
		var downloaded struct{ Dir string }
		Expect(json.Unmarshal(out, &downloaded)).To(Succeed())
		dir = downloaded.Dir
	}
	for _, kind := range kinds {
		file := filepath.Join(dir, "config/crd/standard/policy.networking.k8s.io_"+kind+".yaml")
		Expect(cluster.ApplyFile(ctx, suite.Lab.Kubeconfig(), file)).To(Succeed())
	}
}

// tenant sets the label tenant of a namespace; value is JSON.
func tenant(ctx context.Context, namespace, value string) {
	GinkgoHelper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{"tenant":%s}}}`, value)
	_, err := suite.Cluster.CoreV1().Namespaces().Patch(ctx, namespace, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	Expect(err).NotTo(HaveOccurred())
}

func clusterPolicyOf(version, kind, name string) *unstructured.Unstructured {
	policy := &unstructured.Unstructured{}
	policy.SetGroupVersionKind(schema.GroupVersionKind{Group: "policy.networking.k8s.io", Version: version, Kind: kind})
	policy.SetName(name)
	return policy
}

// clusterPolicies applies a sample once its kinds are served, and returns its policies. They are deleted when the spec ends.
func clusterPolicies(ctx context.Context, sample string, policies ...*unstructured.Unstructured) []*unstructured.Unstructured {
	GinkgoHelper()
	Eventually(func() error {
		return cluster.ApplyFile(ctx, suite.Lab.Kubeconfig(), filepath.Join("../../config/samples/network-policy-api", sample))
	}).WithContext(ctx).WithTimeout(30 * time.Second).Should(Succeed())
	for _, policy := range policies {
		DeferCleanup(func(ctx SpecContext) { Expect(client.IgnoreNotFound(suite.Objects.Delete(ctx, policy))).To(Succeed()) })
	}
	return policies
}

// readyPolicy waits until a policy is Ready.
func readyPolicy(ctx context.Context, policy *unstructured.Unstructured) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(suite.Objects.Get(ctx, client.ObjectKeyFromObject(policy), policy)).To(Succeed())
		conditions, _, err := unstructured.NestedSlice(policy.Object, "status", "conditions")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(conditions).To(ContainElement(And(HaveKeyWithValue("type", "Ready"), HaveKeyWithValue("status", "True"))))
	}).WithContext(ctx).WithTimeout(20 * time.Second).Should(Succeed())
}
