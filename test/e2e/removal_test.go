// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/test/cluster"
)

const removalNamespace = "e2e-removal"

// bare holds the state of each node before the installation of Kiln. It is nil if the suite did not install Kiln.
var bare map[string]string

// nodeState prints the state of a node that Kiln may change, without the settings and common plugins that remain, and without
// link-local addresses.
const nodeState = `ip -o link show | awk '{print $2, $4, $5}'; ip neighbour show nud permanent | sort
ip -o address show | grep -v -e fe80: | sed 's/ *valid_lft.*//; s/^[0-9]*: //'
for f in -4 -6; do ip $f rule show; ip $f route show table all | grep -v -e fe80: -e ff00: -e anycast | sed 's/ expires [0-9]*sec//' | sort; done
nft list tables
ls -A /etc/cni/net.d /opt/cni/bin /run/openvswitch /run/ovn /etc/openvswitch 2>/dev/null | grep -v -e loopback -e portmap -e : -e '^$'
ps -eo comm | grep -e '^ov[ns]' || true`

func nodeStates(ctx context.Context) map[string]string {
	GinkgoHelper()
	states := map[string]string{}
	for _, n := range suite.Lab.Nodes() {
		out, err := cluster.LabNode{Lab: suite.Lab}.Exec(ctx, n.Name, "sh", "-c", nodeState)
		Expect(err).NotTo(HaveOccurred())
		states[n.Name] = out
	}
	return states
}

var _ = Describe("removal", Label(disruptive, mayRestart), Ordered, func() {
	BeforeAll(func(ctx SpecContext) {
		// With KEEP=1 the suite runs in a lab where Kiln is already installed. A new lab, as in make test-e2e, never skips.
		if bare == nil {
			Skip("Kiln was installed before the suite began: the nodes' state without it is unknown")
		}
		makeNamespace(ctx, removalNamespace)
		for i, node := range suite.Workers {
			_, err := suite.Cluster.Run(ctx, cluster.Server(removalNamespace, fmt.Sprintf("pod-%d", i), node))
			Expect(err).NotTo(HaveOccurred())
		}
	}, NodeTimeout(3*time.Minute))
	AfterAll(func(ctx SpecContext) { deleteNamespace(ctx, removalNamespace) }, NodeTimeout(3*time.Minute))

	DescribeTable("leaves nodes as they were, and an installation after it works", func(ctx SpecContext, policy v1alpha1.DeletionPolicy) {
		spec := asInstalled()
		spec.DeletionPolicy = policy
		Expect(suite.Cluster.ApplyOVNCluster(ctx, spec)).To(Succeed())
		start := time.Now()
		remove(ctx)
		AddReportEntry("removal", fmt.Sprintf("%s after %s", policy, time.Since(start).Round(time.Second)))

		for node, state := range nodeStates(ctx) {
			Expect(state).To(Equal(bare[node]), node)
			out, err := suite.Node.Exec(ctx, node, "sh", "-c", "ls -A "+dataDir+" 2>/dev/null || true")
			Expect(err).NotTo(HaveOccurred())
			if policy == v1alpha1.DeletionDelete {
				Expect(out).To(BeEmpty(), node)
			}
		}
		_, err := suite.Cluster.CoreV1().Secrets("kube-system").Get(ctx, "kiln-ca-nb-server", metav1.GetOptions{})
		Expect(apierrors.IsNotFound(err)).To(Equal(policy == v1alpha1.DeletionDelete), "%v", err)
		var subnets v1.SubnetList
		Expect(suite.Objects.List(ctx, &subnets)).To(Succeed())
		Expect(subnets.Items).NotTo(BeEmpty())
		for i := range subnets.Items {
			Expect(subnets.Items[i].Finalizers).To(BeEmpty(), subnets.Items[i].Name)
		}

		spec.DeletionPolicy = v1alpha1.DeletionRetain
		Expect(suite.Cluster.ApplyOVNCluster(ctx, spec)).To(Succeed())
		Expect(suite.Cluster.WaitAvailable(ctx, func(string) {})).To(Succeed())
		renewPods(ctx)
		expectAllChecks(ctx)
	},
		Entry("with data retained", v1alpha1.DeletionRetain, SpecTimeout(9*time.Minute)),
		Entry("with data deleted", v1alpha1.DeletionDelete, SpecTimeout(9*time.Minute)),
	)
})

// remove deletes the OVNCluster and waits until the object no longer exists. It expects that every node was cleaned up.
func remove(ctx context.Context) {
	GinkgoHelper()
	oc := &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OVNClusterName}}
	begun := time.Now()
	Expect(suite.Objects.Delete(ctx, oc)).To(MatchError(ContainSubstring(v1alpha1.AnnotationAllowRemoval)))
	allow := fmt.Sprintf(`{"metadata":{"annotations":{%q:"true"}}}`, v1alpha1.AnnotationAllowRemoval)
	Expect(suite.Objects.Patch(ctx, oc, client.RawPatch(types.MergePatchType, []byte(allow)))).To(Succeed())
	Expect(suite.Objects.Delete(ctx, oc)).To(Succeed())
	Eventually(func(g Gomega) {
		err := suite.Objects.Get(ctx, client.ObjectKeyFromObject(oc), oc)
		g.Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", oc.Status.Conditions)
	}).WithContext(ctx).WithTimeout(4 * time.Minute).WithPolling(time.Second).Should(Succeed())
	Eventually(func(g Gomega) { // the garbage collector deletes the policies
		policies, err := suite.Cluster.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/managed-by=kiln-operator",
		})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(policies.Items).To(BeEmpty())
	}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
	events, err := suite.Cluster.EventsV1().Events("default").List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	for i := range events.Items {
		e := &events.Items[i]
		Expect(e.Reason == "NodesNotCleaned" && e.CreationTimestamp.After(begun)).To(BeFalse(), e.Note)
	}
}

// renewPods deletes every pod that is not on the host network, as users have to: the removal deleted their interfaces.
func renewPods(ctx context.Context) {
	GinkgoHelper()
	pods, err := suite.Cluster.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	Expect(err).NotTo(HaveOccurred())
	for i := range pods.Items {
		p := &pods.Items[i]
		if !p.Spec.HostNetwork {
			removePods(ctx, p.Namespace, p.Name)
		}
	}
}
