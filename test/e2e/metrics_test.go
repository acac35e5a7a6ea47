// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/test/cluster"
)

// metricsTarget is a component with metrics: the families that must have data on each of its pods, or on one of them.
type metricsTarget struct {
	app      string
	port     int
	families []string
	onOne    bool
}

var metricsTargets = []metricsTarget{
	{app: "kiln-operator", port: 10670, families: []string{
		"kiln_ovncluster_condition", "kiln_component_pods", "kiln_authority_expiration_timestamp_seconds", "klog_lines_total", "rest_client_request_latency_seconds_count",
	}},
	{app: "kube-ovn-controller", port: 10660, onOne: true, families: []string{
		"kiln_objects", "kiln_northbound_last_commit_timestamp_seconds", "ovs_client_request_latency_milliseconds_count", "subnet_used_ip_count",
		"subnet_available_ip_count", "workqueue_depth", "rest_client_request_latency_seconds_bucket", "klog_lines_total", "process_cpu_seconds_total",
	}},
	{app: "kube-ovn-cni", port: 10665, families: []string{
		"ovs_client_request_latency_milliseconds_count", "rest_client_request_latency_seconds_count", "klog_lines_total", "go_goroutines", "kiln_conntrack_limit",
	}},
	{app: "ovs", port: 10672, families: []string{
		"kube_ovn_ovs_status", "kube_ovn_ovs_info", "kube_ovn_dp_total", "kube_ovn_dp_if_total", "kube_ovn_dp_flows_total", "kube_ovn_dp_flows_lookup_hit",
		"kube_ovn_dp_flows_lookup_missed", "kube_ovn_interface_mtu", "kube_ovn_interface_rx_bytes", "kube_ovn_interface_tx_packets", "kube_ovn_db_file_size_bytes",
		"kiln_ovn_controller_connected", "kiln_certificate_expiration_timestamp_seconds", "process_resident_memory_bytes",
	}},
	{app: "kube-ovn-monitor", port: 10661, families: []string{
		"kube_ovn_ovn_status", "kube_ovn_cluster_role", "kube_ovn_cluster_term", "kube_ovn_cluster_leader_self", "kube_ovn_db_file_size_bytes",
		"kube_ovn_chassis_info", "kube_ovn_logical_switch_info", "kube_ovn_logical_switch_ports_num", "kube_ovn_logical_switch_tunnel_key",
		"kiln_northd_stopwatch_milliseconds", "kiln_northd_engine_runs_total", "kiln_northd_connected", "kiln_ovsdb_usage", "kiln_monitor_target_up",
	}},
}

var _ = Describe("metrics", func() {
	It("are exported by each component", func(ctx SpecContext) {
		// An agent that has just started exports the latency of its requests to Open vSwitch after the first one.
		_, stop := startPods(ctx, metav1.NamespaceDefault)
		DeferCleanup(func() { Expect(stop().failures).To(BeEmpty()) })
		for _, target := range metricsTargets {
			By(target.app)
			Eventually(func(g Gomega) {
				pods := servingPods(ctx, target.app)
				g.Expect(pods).NotTo(BeEmpty())
				var texts []string
				for i := range pods {
					text, err := scrapeOn(ctx, &pods[i], fmt.Sprintf("http://127.0.0.1:%d/metrics", target.port))
					g.Expect(err).NotTo(HaveOccurred())
					texts = append(texts, text)
				}
				if target.onOne {
					texts = []string{strings.Join(texts, "\n")}
				}
				for _, text := range texts {
					for _, family := range target.families {
						g.Expect(text).To(MatchRegexp(`(?m)^%s[{ ]`, family))
					}
				}
			}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(2 * time.Second).Should(Succeed())
		}
	}, SpecTimeout(6*time.Minute))

	It("need a token when the access is Authorized", func(ctx SpecContext) {
		const account, name = "e2e-prometheus", "e2e-read-metrics"
		objects := []client.Object{
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account, Namespace: metav1.NamespaceDefault}},
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}},
			&rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
				Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account, Namespace: metav1.NamespaceDefault}},
			},
		}
		for _, o := range objects {
			Expect(suite.Objects.Create(ctx, o)).To(Succeed())
			DeferCleanup(func(ctx SpecContext) { Expect(suite.Objects.Delete(ctx, o)).To(Succeed()) }, NodeTimeout(time.Minute))
		}
		reader := tokenOf(ctx, objects[0].(*corev1.ServiceAccount))
		var other corev1.ServiceAccount
		Eventually(func() error {
			return suite.Objects.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceDefault, Name: "default"}, &other)
		}).WithContext(ctx).Should(Succeed())
		stranger := tokenOf(ctx, &other)

		before, memory := processes(ctx), agentMemory(ctx)
		spec := asInstalled()
		spec.Monitoring.Access = v1alpha1.MetricsAuthorized
		DeferCleanup(func(ctx SpecContext) { Expect(suite.Cluster.ApplyOVNCluster(ctx, asInstalled())).To(Succeed()) }, NodeTimeout(time.Minute))
		Expect(suite.Cluster.ApplyOVNCluster(ctx, spec)).To(Succeed())
		for _, target := range metricsTargets {
			By(target.app)
			Eventually(func(g Gomega) {
				pods := servingPods(ctx, target.app)
				g.Expect(pods).NotTo(BeEmpty())
				for i := range pods {
					plain, secure := fmt.Sprintf("http://127.0.0.1:%d/metrics", target.port), fmt.Sprintf("https://127.0.0.1:%d/metrics", target.port+200)
					for _, refused := range [][]string{{plain}, {secure}, {"-H", "Authorization: Bearer " + stranger, secure}} {
						text, err := scrapeOn(ctx, &pods[i], refused...)
						g.Expect(err).To(HaveOccurred(), text)
					}
					text, err := scrapeOn(ctx, &pods[i], "-H", "Authorization: Bearer "+reader, secure)
					g.Expect(err).NotTo(HaveOccurred())
					g.Expect(text).To(MatchRegexp(`(?m)^go_goroutines `))
				}
			}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(2 * time.Second).Should(Succeed())
		}
		AddReportEntry("memory of an agent", fmt.Sprintf("Open %d KiB, Authorized %d KiB", memory, agentMemory(ctx)))
		Expect(suite.Cluster.ApplyOVNCluster(ctx, asInstalled())).To(Succeed())
		Eventually(func(g Gomega) {
			pods := servingPods(ctx, "ovs")
			g.Expect(pods).NotTo(BeEmpty())
			_, err := scrapeOn(ctx, &pods[0], "http://127.0.0.1:10672/metrics")
			g.Expect(err).NotTo(HaveOccurred())
		}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
		Expect(suite.Cluster.WaitAvailable(ctx, func(m string) { GinkgoWriter.Println(m) })).To(Succeed())
		Expect(processes(ctx)).To(Equal(before))
	}, SpecTimeout(8*time.Minute))
})

// servingPods returns the pods of a component that run and are not being deleted.
func servingPods(ctx context.Context, app string) []corev1.Pod {
	GinkgoHelper()
	return slices.DeleteFunc(kilnPods(ctx, app), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning })
}

// scrapeOn requests metrics on the node of a pod. It returns an error for a status other than 200.
func scrapeOn(ctx context.Context, pod *corev1.Pod, args ...string) (string, error) {
	return suite.Node.Exec(ctx, pod.Spec.NodeName, append([]string{"curl", "-sfk", "--max-time", "15"}, args...)...)
}

// agentMemory returns the resident memory of the first worker's agent in KiB.
func agentMemory(ctx context.Context) (size int) {
	GinkgoHelper()
	_, err := fmt.Sscan(exec(ctx, suite.Workers[0], "sh", "-c", `awk '/^VmRSS/ {print $2}' /proc/$(pgrep -of 'kiln agent')/status`), &size)
	Expect(err).NotTo(HaveOccurred())
	return size
}

func tokenOf(ctx context.Context, account *corev1.ServiceAccount) string {
	GinkgoHelper()
	var request authenticationv1.TokenRequest
	Expect(suite.Objects.SubResource("token").Create(ctx, account, &request)).To(Succeed())
	return request.Status.Token
}

// processes returns the starts of the containers of Kiln's pods, by pod and UID.
func processes(ctx context.Context) map[string]metav1.Time {
	GinkgoHelper()
	started := map[string]metav1.Time{}
	for _, pod := range kilnPods(ctx, "") {
		for _, c := range pod.Status.ContainerStatuses {
			if c.State.Running != nil {
				started[pod.Name+" "+string(pod.UID)+" "+c.Name] = c.State.Running.StartedAt
			}
		}
	}
	return started
}

// kilnPods returns Kiln's pods, or the pods with the label app.
func kilnPods(ctx context.Context, app string) []corev1.Pod {
	GinkgoHelper()
	options := metav1.ListOptions{}
	if app != "" {
		options.LabelSelector = "app=" + app
	}
	list, err := suite.Cluster.CoreV1().Pods(cluster.Namespace).List(ctx, options)
	Expect(err).NotTo(HaveOccurred())
	var pods []corev1.Pod
	for _, pod := range list.Items {
		if components.MatchString(pod.Name) {
			pods = append(pods, pod)
		}
	}
	return pods
}
