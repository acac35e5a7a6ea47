// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/pinger"
	"github.com/kiln-net/kiln/hack/dashboard/page"
	"github.com/kiln-net/kiln/test/cluster"
)

// prometheusName is the name of the namespace of Prometheus, and of the objects in it.
const prometheusName = "e2e-prometheus"

// prometheusInterval is the interval and the timeout of scrapes. It exceeds the time that kube-ovn-monitor waits for a process.
const prometheusInterval = 8 * time.Second

// startPrometheus enables kube-ovn-pinger and runs Debian's Prometheus in a pod of the control plane, with the configuration of
// docs/operations/monitoring.md and a rule file. It returns when all targets are scraped.
func startPrometheus(ctx context.Context, rules string) page.Getter {
	GinkgoHelper()
	enablePinger(ctx)
	makeNamespace(ctx, prometheusName)
	config := fmt.Sprintf("global: {scrape_interval: %[1]s, evaluation_interval: 1s, scrape_timeout: %[1]s}\nrule_files: [/etc/prometheus/rules.yaml]\n%[2]s",
		prometheusInterval, documentedScrapes())
	named := metav1.ObjectMeta{Name: prometheusName, Namespace: prometheusName}
	inKubeSystem := metav1.ObjectMeta{Name: prometheusName, Namespace: metav1.NamespaceSystem}
	read := []string{"get", "list", "watch"}
	for _, o := range []client.Object{
		&corev1.ServiceAccount{ObjectMeta: named},
		&corev1.ConfigMap{ObjectMeta: named, Data: map[string]string{"prometheus.yml": config, "rules.yaml": rules}},
		&rbacv1.Role{ObjectMeta: inKubeSystem, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"services", "pods"}, Verbs: read},
			{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: read},
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: inKubeSystem, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: prometheusName},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: prometheusName, Namespace: prometheusName}},
		},
	} {
		Expect(suite.Objects.Create(ctx, o)).To(Succeed())
		if o.GetNamespace() == metav1.NamespaceSystem {
			DeferCleanup(func(ctx SpecContext) { Expect(suite.Objects.Delete(ctx, o)).To(Succeed()) }, NodeTimeout(time.Minute))
		}
	}
	DeferCleanup(func(ctx SpecContext) { deleteNamespace(ctx, prometheusName) }, NodeTimeout(3*time.Minute))
	_, err := suite.Cluster.Run(ctx, prometheusPod())
	Expect(err).NotTo(HaveOccurred())
	get := prometheusAPI()
	Eventually(func(g Gomega) {
		down, err := get.Instant(ctx, "up == 0")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(down).To(BeEmpty())
		jobs, err := get.Instant(ctx, `count by (job) (up)`)
		g.Expect(err).NotTo(HaveOccurred())
		pods := map[string]int{}
		for _, s := range jobs {
			pods[s.Labels["job"]] = int(s.Value.Value)
		}
		nodes := len(suite.Lab.Nodes())
		g.Expect(pods).To(Equal(map[string]int{
			"kiln-operator": 1, "kube-ovn-controller": 1, "kube-ovn-monitor": 1, "kube-ovn-cni": nodes, "ovs-ovn": nodes, "kube-ovn-pinger": nodes,
		}))
	}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
	return get
}

func enablePinger(ctx context.Context) {
	GinkgoHelper()
	Expect(suite.Cluster.ApplyOVNCluster(ctx, withPinger())).To(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		Expect(suite.Cluster.ApplyOVNCluster(ctx, asInstalled())).To(Succeed())
		Eventually(suite.Cluster.PodsOf).WithContext(ctx).WithArguments(pinger.App).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(BeEmpty())
	}, NodeTimeout(3*time.Minute))
}

// documentedScrapes returns the scrape configuration of docs/operations/monitoring.md.
func documentedScrapes() string {
	GinkgoHelper()
	text, err := os.ReadFile("../../docs/operations/monitoring.md")
	Expect(err).NotTo(HaveOccurred())
	_, after, _ := strings.Cut(string(text), "```yaml\nscrape_configs:")
	scrapes, _, found := strings.Cut(after, "```")
	Expect(found).To(BeTrue(), "docs/operations/monitoring.md has scrape_configs")
	return "scrape_configs:" + scrapes
}

// prometheusPod runs the program of the lab's cache, which nodes have in /usr/local/bin, with the libraries of the lab's image.
func prometheusPod() *corev1.Pod {
	pod := cluster.Server(prometheusName, prometheusName, controlPlane())
	pod.Spec.ServiceAccountName = prometheusName
	c := &pod.Spec.Containers[0]
	c.Name, c.Args = "prometheus", nil
	c.Command = []string{
		"/lab/prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/data", fmt.Sprintf("--web.listen-address=:%d", cluster.HTTPPort),
	}
	c.ReadinessProbe.HTTPGet.Path = "/-/ready"
	c.VolumeMounts = []corev1.VolumeMount{
		{Name: "programs", MountPath: "/lab", ReadOnly: true}, {Name: "config", MountPath: "/etc/prometheus"}, {Name: "data", MountPath: "/data"},
	}
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "programs", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/usr/local/bin"}}},
		{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: prometheusName}}}},
		{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	return pod
}

// prometheusAPI returns the API of Prometheus, through the API server.
func prometheusAPI() page.Getter {
	return func(ctx context.Context, path string, parameters url.Values) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, prometheusInterval) // the API server waits longer for a node that does not answer
		defer cancel()
		request := suite.Cluster.CoreV1().RESTClient().Get().Namespace(prometheusName).Resource("pods").Name(fmt.Sprintf("%s:%d", prometheusName, cluster.HTTPPort)).
			SubResource("proxy").Suffix("api/v1/" + path)
		for key, values := range parameters {
			request = request.Param(key, values[0])
		}
		return request.DoRaw(ctx)
	}
}
