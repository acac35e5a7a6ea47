// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

const changesNamespace = "e2e-changes"

// Each change is one of the table in docs/operations/changes.md, with flows between nodes, within a node and through a Service.
var _ = Describe("changes of the OVNCluster:", Label(timed, "changes", disruptive, mayRestart), Ordered, ContinueOnFailure, func() {
	var p *pair
	BeforeAll(func(ctx SpecContext) { p = makePair(ctx, changesNamespace) }, NodeTimeout(3*time.Minute))
	AfterAll(func(ctx SpecContext) {
		restoreCluster(ctx)
		deleteNamespace(ctx, changesNamespace)
	}, NodeTimeout(upgradeTime))

	It("podCIDRs grow without a lost packet", func(ctx SpecContext) {
		before := asInstalled().Network.PodCIDRs
		grown := []string{"10.16.0.0/15", before[1]}
		running := startFlows(ctx, p)
		changeCluster(ctx, func(spec *v1alpha1.OVNClusterSpec) { spec.Network.PodCIDRs = grown })
		changed(ctx, func(g Gomega, status v1alpha1.OVNClusterStatus) { g.Expect(status.PodCIDRs).To(Equal(grown)) })
		subnet := &kubeovnv1.Subnet{}
		Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: kubeovnv1.DefaultSubnet}, subnet)).To(Succeed())
		Expect(subnet.Spec.CIDRBlock).To(HavePrefix(grown[0] + ","))
		Eventually(func(g Gomega) {
			out, err := suite.Cluster.Exec(ctx, p.from, "ip", "-4", "address", "show", "dev", "eth0")
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(out).To(ContainSubstring("/15 "), "the running pod has the prefix length")
		}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
		Expect(running.end(ctx).losses()).To(BeEmpty())
		later := serve(ctx, changesNamespace, "later", 1) // after the flows: the start of a pod costs packets (see watch)
		expectReach(ctx, p.from, later)

		var oc v1alpha1.OVNCluster
		Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc)).To(Succeed())
		oc.Spec.Network.PodCIDRs = before
		Expect(suite.Objects.Update(ctx, &oc)).To(MatchError(ContainSubstring("while pods have addresses of " + grown[0])))
	}, SpecTimeout(upgradeTime))

	It("the databases move to another directory and back without a lost packet", func(ctx SpecContext) {
		running := startFlows(ctx, p)
		for _, directory := range []string{"/var/lib/kiln-e2e", asInstalled().Central.DataDirectory} {
			if directory == "" {
				directory = "/etc/origin/ovn"
			}
			var before v1alpha1.OVNCluster
			Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &before)).To(Succeed())
			changeCluster(ctx, func(spec *v1alpha1.OVNClusterSpec) { spec.Central.DataDirectory = directory })
			changed(ctx, func(g Gomega, status v1alpha1.OVNClusterStatus) {
				g.Expect(status.DataDirectories).To(Equal([]string{directory}))
				g.Expect(status.Northbound.ClusterID).To(Equal(before.Status.Northbound.ClusterID))
				g.Expect(status.Southbound.ClusterID).To(Equal(before.Status.Southbound.ClusterID))
			})
			for _, file := range []string{"ovnnb_db.db", "ovnsb_db.db"} {
				_, err := suite.Node.Exec(ctx, before.Status.Northbound.Members[0].Node, "test", "-s", directory+"/"+file)
				Expect(err).NotTo(HaveOccurred(), file)
				_, err = suite.Node.Exec(ctx, before.Status.Northbound.Members[0].Node, "test", "!", "-e", before.Spec.Central.DataDirectory+"/"+file)
				Expect(err).NotTo(HaveOccurred(), file)
			}
		}
		Expect(running.end(ctx).losses()).To(BeEmpty())
	}, SpecTimeout(upgradeTime))

	It("toolingDirectory installs kubectl-ko on each node without a lost packet", func(ctx SpecContext) {
		const directory = "/opt/kiln-e2e"
		onNode := func(node string, command ...string) string {
			GinkgoHelper()
			out, err := suite.Node.Exec(ctx, node, command...)
			Expect(err).NotTo(HaveOccurred(), out)
			return out
		}
		DeferCleanup(func(ctx SpecContext) {
			for _, n := range suite.Lab.Nodes() {
				_, err := suite.Node.Exec(ctx, n.Name, "rm", "-rf", directory)
				Expect(err).NotTo(HaveOccurred())
			}
		}, NodeTimeout(time.Minute))
		running := startFlows(ctx, p)
		for _, set := range []string{directory, ""} { // without the field, the files stay
			changeCluster(ctx, func(spec *v1alpha1.OVNClusterSpec) { spec.Agent.ToolingDirectory = set })
			changed(ctx, func(Gomega, v1alpha1.OVNClusterStatus) {})
			for _, n := range suite.Lab.Nodes() {
				Eventually(func() error { // agents copy it after they are ready
					_, err := suite.Node.Exec(ctx, n.Name, "test", "-e", directory+"/kubectl_complete-ko")
					return err
				}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed(), n.Name)
				Expect(onNode(n.Name, directory+"/kubectl-ko", "version", "--client")).To(HavePrefix("kubectl-ko "), n.Name)
				Expect(onNode(n.Name, directory+"/kubectl_complete-ko", "diagno")).To(HavePrefix("diagnose\t"), n.Name)
				Expect(strings.Fields(onNode(n.Name, "ls", "-A", directory))).To(ConsistOf("kubectl-ko", "kubectl_complete-ko"), n.Name)
			}
		}
		Expect(running.end(ctx).losses()).To(BeEmpty())
	}, SpecTimeout(upgradeTime))

	It("tunnelType changes to vxlan and back, and nodes stay connected", func(ctx SpecContext) {
		if asInstalled().Nodes.Datapath == v1alpha1.DatapathKernel {
			Skip("the lab's kernel may have no vxlan")
		}
		for _, kind := range []v1alpha1.TunnelType{v1alpha1.TunnelVXLAN, v1alpha1.TunnelGeneve} {
			traffic := startTraffic(ctx, p)
			changeCluster(ctx, func(spec *v1alpha1.OVNClusterSpec) { spec.Network.TunnelType = kind })
			changed(ctx, func(g Gomega, status v1alpha1.OVNClusterStatus) {
				g.Expect(status.TunnelTypes).To(Equal([]v1alpha1.TunnelType{kind}))
			})
			traffic(ctx, "tunnelType "+string(kind), 4) // the pods of two nodes are replaced twice
		}
	}, SpecTimeout(2*upgradeTime))
})

// changeCluster changes the spec of the OVNCluster.
func changeCluster(ctx context.Context, change func(*v1alpha1.OVNClusterSpec)) {
	GinkgoHelper()
	var oc v1alpha1.OVNCluster
	Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc)).To(Succeed())
	before := oc.DeepCopy()
	change(&oc.Spec)
	Expect(suite.Objects.Patch(ctx, &oc, client.MergeFrom(before))).To(Succeed())
}

// changed waits until the operator has nothing left to do, and the status is right.
func changed(ctx context.Context, right func(Gomega, v1alpha1.OVNClusterStatus)) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		var oc v1alpha1.OVNCluster
		g.Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc)).To(Succeed())
		right(g, oc.Status)
		g.Expect(oc.Status.ObservedGeneration).To(Equal(oc.Generation))
		g.Expect(meta.IsStatusConditionFalse(oc.Status.Conditions, v1alpha1.ConditionProgressing)).To(BeTrue(), oc.Status.Message)
		g.Expect(meta.IsStatusConditionTrue(oc.Status.Conditions, v1alpha1.ConditionAvailable)).To(BeTrue(), oc.Status.Message)
	}).WithContext(ctx).WithTimeout(upgradeTime).WithPolling(time.Second).Should(Succeed())
}

// restoreCluster sets the OVNCluster as installed. The record of podCIDRs, which refuses that they shrink, is removed first: all pods with
// addresses outside of the first ones are of these specs.
func restoreCluster(ctx context.Context) {
	GinkgoHelper()
	removePods(ctx, changesNamespace, "later")
	var oc v1alpha1.OVNCluster
	Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc)).To(Succeed())
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"podCIDRs":null}}`))
	Expect(suite.Objects.Status().Patch(ctx, &oc, patch)).To(Succeed())
	Expect(suite.Cluster.ApplyOVNCluster(ctx, asInstalled())).To(Succeed())
	changed(ctx, func(g Gomega, status v1alpha1.OVNClusterStatus) {
		g.Expect(status.PodCIDRs).To(Equal(asInstalled().Network.PodCIDRs))
	})
	changeSubnet(ctx, kubeovnv1.DefaultSubnet, func(s *kubeovnv1.SubnetSpec) {
		s.CIDRBlock = asInstalled().Network.PodCIDRs[0] + "," + asInstalled().Network.PodCIDRs[1]
	})
}
