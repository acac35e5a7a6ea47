// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/pinger"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/test/cluster"
)

const (
	// nextImage is a second name of the running image.
	nextImage   = "kiln.local/kiln:next"
	canaryLabel = "network.example.com/canary" // as in config/samples/ovncluster_canary.yaml
)

// onNodes are the workloads of every node.
var onNodes = []string{"ovs-ovn", "kube-ovn-cni"}

// upgradeSpecs are specs of three members.
func upgradeSpecs(p **pair) {
	var present string

	BeforeAll(func(ctx SpecContext) {
		present = componentImages(ctx, Default)[0]
		var nodes corev1.NodeList // machines without power have no Node object
		Expect(suite.Objects.List(ctx, &nodes)).To(Succeed())
		for i := range nodes.Items {
			_, err := suite.Node.Exec(ctx, nodes.Items[i].Name, "ctr", "--address", "/run/containerd/containerd.sock", "--namespace", "k8s.io",
				"images", "tag", "--force", present, nextImage)
			Expect(err).NotTo(HaveOccurred())
		}
		Expect(suite.Cluster.ApplyOVNCluster(ctx, grown(asInstalled()))).To(Succeed())
		for _, db := range trialDatabases {
			settled(ctx, db, 3)
		}
	}, NodeTimeout(5*time.Minute))
	AfterAll(func(ctx SpecContext) {
		Expect(suite.Cluster.ApplyOVNCluster(ctx, grown(asInstalled()))).To(Succeed())
		labelNodes(ctx, canaryLabel, nil)
		runsOn(ctx, present)
	}, NodeTimeout(upgradeTime))

	It("stop before the first pod is replaced if nodes cannot pull the image", func(ctx SpecContext) {
		wantImage(ctx, "kiln.local/kiln:missing", v1alpha1.UpgradeAutomatic)
		Eventually(progressing).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(
			And(HavePrefix("False ReplacingStopped"), ContainSubstring("0 of "), MatchRegexp("ErrImagePull|ImagePullBackOff")))
		Expect(componentImages(ctx, Default)).To(HaveEach(present))
		wantImage(ctx, present, v1alpha1.UpgradeAutomatic)
		runsOn(ctx, present)
		Eventually(func() error {
			return suite.Objects.Get(ctx, client.ObjectKey{Namespace: "kube-system", Name: "kiln-image"}, &appsv1.DaemonSet{})
		}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(time.Second).Should(WithTransform(apierrors.IsNotFound, BeTrue()))
	}, SpecTimeout(4*time.Minute))

	It("begin on canary nodes, and then go everywhere", Label(timed), func(ctx SpecContext) {
		Expect(cluster.ApplyFile(ctx, suite.Lab.Kubeconfig(), "../../config/samples/ovncluster_canary.yaml")).To(Succeed())
		var worker corev1.Node
		Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: suite.Workers[1]}, &worker)).To(Succeed())
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, canaryLabel)
		Expect(suite.Objects.Patch(ctx, &worker, client.RawPatch("application/merge-patch+json", patch))).To(Succeed())

		traffic := startTraffic(ctx, *p)
		wantImage(ctx, nextImage, v1alpha1.UpgradeCanary)
		Eventually(progressing).WithContext(ctx).WithTimeout(upgradeTime / 3).WithPolling(time.Second).Should(
			And(HavePrefix("False ReplacingPaused"), ContainSubstring("the canary nodes are done")))
		for node, images := range imagesByNode(ctx, Default) {
			want := present
			if node == suite.Workers[1] {
				want = nextImage
			}
			Expect(images).To(HaveEach(want), node)
		}
		wantImage(ctx, nextImage, v1alpha1.UpgradeAutomatic)
		runsOn(ctx, nextImage)
		traffic(ctx, "upgrade", 2)
	}, SpecTimeout(upgradeTime))

	It("go back when the image is set back", Label(timed), func(ctx SpecContext) {
		traffic := startTraffic(ctx, *p)
		wantImage(ctx, present, v1alpha1.UpgradeAutomatic)
		runsOn(ctx, present)
		traffic(ctx, "rollback", 2)
	}, SpecTimeout(upgradeTime))

	It("go back halfway as well", Label(timed, "faults"), func(ctx SpecContext) {
		traffic := startTraffic(ctx, *p)
		wantImage(ctx, nextImage, v1alpha1.UpgradeAutomatic)
		Eventually(func(g Gomega) {
			g.Expect(imagesByNode(ctx, g)).To(HaveKeyWithValue(suite.Workers[0], HaveEach(nextImage)))
		}).WithContext(ctx).WithTimeout(upgradeTime / 3).WithPolling(time.Second).Should(Succeed())
		wantImage(ctx, present, v1alpha1.UpgradeAutomatic)
		runsOn(ctx, present)
		traffic(ctx, "rollback halfway", 4)
	}, SpecTimeout(upgradeTime))
}

// upgradeTime is more than an upgrade takes: two minutes in make test-timing, and ten with three members of each database in a kernel lab on one CPU.
const upgradeTime = 18 * time.Minute

// wantImage changes only the image and the upgrade mode.
func wantImage(ctx context.Context, image string, mode v1alpha1.UpgradeMode) {
	GinkgoHelper()
	var oc v1alpha1.OVNCluster
	Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc)).To(Succeed())
	before := oc.DeepCopy()
	oc.Spec.Image, oc.Spec.Upgrade.Mode = image, mode
	Expect(suite.Objects.Patch(ctx, &oc, client.MergeFrom(before))).To(Succeed())
}

// runsOn waits until every component runs an image and no component remains to be replaced.
func runsOn(ctx context.Context, image string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		g.Expect(componentImages(ctx, g)).To(HaveEach(image))
		var oc v1alpha1.OVNCluster
		g.Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc)).To(Succeed())
		g.Expect(oc.Status.ObservedGeneration).To(Equal(oc.Generation))
		g.Expect(oc.Status.Upgrade.Stage).To(BeEmpty(), oc.Status.Upgrade.Message)
		g.Expect(meta.IsStatusConditionFalse(oc.Status.Conditions, v1alpha1.ConditionProgressing)).To(BeTrue())
		g.Expect(meta.IsStatusConditionTrue(oc.Status.Conditions, v1alpha1.ConditionAvailable)).To(BeTrue())
		for _, row := range oc.Status.Components { // both names refer to the same image
			if row.Name == pinger.App { // on the pod network, where the operator asks no pod
				continue
			}
			g.Expect(row.Versions).To(HaveLen(1), row.Name)
			g.Expect(row.Versions[0].Pods).To(Equal(row.Desired), row.Name)
		}
		g.Expect(oc.Status.Versions).To(MatchRegexp(`^Kiln \S+; OVN [0-9.]+; Open vSwitch [0-9.]+$`))
	}).WithContext(ctx).WithTimeout(upgradeTime).WithPolling(time.Second).Should(Succeed())
}

// componentImages returns the images of all component pods.
func componentImages(ctx context.Context, g Gomega) []string {
	var images []string
	for _, app := range []string{"ovs-ovn", "kube-ovn-cni", "ovn-central-nb", "ovn-central-sb", "ovn-central-northd", "kube-ovn-controller"} {
		pods, err := suite.Cluster.PodsOf(ctx, app)
		g.Expect(err).NotTo(HaveOccurred())
		for i := range pods {
			images = append(images, pods[i].Spec.Containers[0].Image)
		}
	}
	return images
}

func imagesByNode(ctx context.Context, g Gomega) map[string][]string {
	images := map[string][]string{}
	for _, app := range onNodes {
		pods, err := suite.Cluster.PodsOf(ctx, app)
		g.Expect(err).NotTo(HaveOccurred())
		for i := range pods {
			node := pods[i].Spec.NodeName
			images[node] = append(images[node], pods[i].Spec.Containers[0].Image)
		}
	}
	return images
}

func progressing(ctx context.Context) (string, error) {
	var oc v1alpha1.OVNCluster
	if err := suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc); err != nil {
		return "", err
	}
	c := meta.FindStatusCondition(oc.Status.Conditions, v1alpha1.ConditionProgressing)
	if c == nil {
		return "", nil
	}
	return strings.Join([]string{string(c.Status), c.Reason, c.Message}, " "), nil
}
