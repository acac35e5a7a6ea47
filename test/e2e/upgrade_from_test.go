// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/test/cluster"
)

const (
	// headManifests install this version, whose image the lab has as headImage.
	headManifests = "../../hack/lab/manifests"
	headImage     = "kiln.local/kiln:dev"
	// fromImage is the image of the earlier version. UPGRADE_FROM is the directory of its source.
	fromImage = "kiln.local/kiln:from"

	keptNamespace = "e2e-kept"

	// upgradeFrom is the label of the specs of `make test-upgrade`.
	upgradeFrom = "upgrade-from"
)

// manifests returns the directory of the manifests to install: of this version, or of the earlier version of `make test-upgrade`.
func manifests() string {
	GinkgoHelper()
	from := os.Getenv("UPGRADE_FROM")
	if from == "" {
		return headManifests
	}
	dir := filepath.Join(from, "hack", "lab", "from")
	Expect(os.MkdirAll(dir, 0o755)).To(Succeed())
	name, tag, _ := strings.Cut(fromImage, ":")
	text := fmt.Sprintf("resources: [../manifests]\nimages:\n- {name: %s, newTag: %s}\n", name, tag)
	Expect(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600)).To(Succeed())
	return dir
}

// keptPods are pods that each use a network that only some namespaces may use.
var keptPods = []struct {
	name, key, value string
	cidr             netip.Prefix
}{
	{"plain", "", "", netip.MustParsePrefix("10.16.0.0/16")},
	{"vpc", kubeovnv1.AnnotationLogicalSwitch.Key(), "kept-vpc", netip.MustParsePrefix("10.86.0.0/24")},
	{"private", kubeovnv1.AnnotationLogicalSwitch.Key(), "kept-private", netip.MustParsePrefix("10.87.0.0/24")},
	{"pool", kubeovnv1.AnnotationIPPool.Key(), "kept-pool", netip.MustParsePrefix("10.88.0.100/30")},
}

// startKept starts one pod of each kind and returns the networks in their annotations.
func startKept(ctx context.Context, when string) (networks map[string]map[string]string) {
	GinkgoHelper()
	networks = map[string]map[string]string{}
	for i, kept := range keptPods {
		pod := cluster.Server(keptNamespace, kept.name+"-"+when, suite.Workers[i%len(suite.Workers)])
		if kept.key != "" {
			pod.Annotations = map[string]string{kept.key: kept.value}
		}
		pod, err := suite.Cluster.Run(ctx, pod)
		Expect(err).NotTo(HaveOccurred())
		Expect(kept.cidr.Contains(cluster.PodAddrs(pod)[0])).To(BeTrue(), "pod %s has %v", pod.Name, cluster.PodAddrs(pod))
		networks[pod.Name] = networkOf(pod)
	}
	return networks
}

// networkOf returns the annotations of a pod that describe its network.
func networkOf(pod *corev1.Pod) map[string]string {
	network := maps.Clone(pod.Annotations)
	maps.DeleteFunc(network, func(key, _ string) bool { return !strings.HasPrefix(key, "ovn.kubernetes.io/") })
	return network
}

// expectKept expects that pods still run with unchanged networks.
func expectKept(ctx context.Context, networks map[string]map[string]string) {
	GinkgoHelper()
	for name, before := range networks {
		pod, err := suite.Cluster.CoreV1().Pods(keptNamespace).Get(ctx, name, metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		Expect(cluster.Ready(pod)).To(BeTrue(), name)
		Expect(networkOf(pod)).To(Equal(before), name)
	}
}

// monitorRuns expects that kube-ovn-monitor, which takes no part in the stages of an upgrade, runs.
func monitorRuns(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		pods, err := suite.Cluster.PodsOf(ctx, adminapi.MonitorName)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pods).To(HaveLen(1))
		g.Expect(cluster.Ready(&pods[0])).To(BeTrue(), pods[0].Name)
	}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
}

// The suite has installed the version of UPGRADE_FROM.
var _ = Describe("an upgrade from an earlier version", Ordered, Label(upgradeFrom), func() {
	var (
		p        *pair
		networks map[string]map[string]string
		trap     *corev1.Service
	)
	served := func(ctx context.Context, from string) {
		GinkgoHelper()
		pod, err := suite.Cluster.CoreV1().Pods(keptNamespace).Get(ctx, from, metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		Eventually(reached).WithContext(ctx).WithArguments(pod, trap.Spec.ClusterIP).WithTimeout(30 * time.Second).Should(HavePrefix("vpc-"))
	}

	BeforeAll(func(ctx SpecContext) {
		makeNamespace(ctx, keptNamespace)
		p = makePair(ctx, membersNamespace)
		allowed := []kubeovnv1.AllowedNamespace{keptNamespace}
		for _, o := range []client.Object{
			&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "kept"}, Spec: kubeovnv1.VpcSpec{
				ClusterAccess: kubeovnv1.ClusterAccessServices, AllowedNamespaces: allowed,
			}},
			&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "kept-vpc"}, Spec: kubeovnv1.SubnetSpec{Vpc: "kept", CIDRBlock: "10.86.0.0/24"}},
			&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "kept-private"}, Spec: kubeovnv1.SubnetSpec{Private: true, CIDRBlock: "10.87.0.0/24", AllowedNamespaces: allowed}},
			&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "kept-common"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.88.0.0/24"}},
			&kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "kept-pool"}, Spec: kubeovnv1.IPPoolSpec{
				Subnet: "kept-common", Namespaces: []string{"e2e-nobody"}, IPs: []string{"10.88.0.100..10.88.0.103"}, AllowedNamespaces: allowed,
			}},
		} {
			Expect(suite.Objects.Create(ctx, o)).To(Succeed())
		}
		networks = startKept(ctx, "before")
		trap = &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: keptNamespace, Name: "kept", Annotations: map[string]string{kubeovnv1.AnnotationLogicalRouter.Key(): "kept"}},
			Spec: corev1.ServiceSpec{
				Selector: map[string]string{"app": "vpc-before"}, Ports: []corev1.ServicePort{{Port: cluster.HTTPPort}},
			},
		}
		Expect(suite.Objects.Create(ctx, trap)).To(Succeed())
		served(ctx, "vpc-before")
	}, NodeTimeout(5*time.Minute))

	It("drops no connection, and keeps the networks of pods", Label(timed), func(ctx SpecContext) {
		traffic := startTraffic(ctx, p)
		Expect(cluster.ApplyManifests(ctx, suite.Lab.Kubeconfig(), headManifests)).To(Succeed())
		runsOn(ctx, headImage)
		traffic(ctx, "upgrade", 2)
		expectKept(ctx, networks)
		monitorRuns(ctx)
		maps.Copy(networks, startKept(ctx, "after"))
		served(ctx, "vpc-after")
	}, SpecTimeout(10*time.Minute))

	It("rolls back to the previous image, and forward again", Label(timed), func(ctx SpecContext) {
		traffic := startTraffic(ctx, p)
		wantImage(ctx, fromImage, v1alpha1.UpgradeAutomatic)
		runsOn(ctx, fromImage)
		traffic(ctx, "rollback", 2)
		expectKept(ctx, networks)
		monitorRuns(ctx)
		startKept(ctx, "back")
		served(ctx, "vpc-back")
		wantImage(ctx, headImage, v1alpha1.UpgradeAutomatic)
		runsOn(ctx, headImage)
		expectKept(ctx, networks)
		monitorRuns(ctx)
		startKept(ctx, "again")
	}, SpecTimeout(15*time.Minute))
})
