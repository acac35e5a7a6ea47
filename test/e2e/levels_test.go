// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/test/cluster"
)

var _ = Describe("logs and profiles", func() {
	It("follow the OVNCluster without a new pod or process", func(ctx SpecContext) {
		before := processes(ctx)
		node, since := suite.Workers[0], time.Now()
		spec := asInstalled()
		spec.Controller.LogLevel, spec.Agent.LogLevel, spec.Central.LogLevel = 1, 1, 1
		spec.Logging = v1alpha1.Logging{Format: v1alpha1.LogText, OperatorLevel: 1, Databases: "warn", Northd: "dbg", OpenVSwitch: "warn", OVNController: "err"}
		spec.Debug.Profiling = v1alpha1.ProfilingEnabled
		DeferCleanup(func(ctx SpecContext) { Expect(suite.Cluster.ApplyOVNCluster(ctx, asInstalled())).To(Succeed()) }, NodeTimeout(time.Minute))
		Expect(suite.Cluster.ApplyOVNCluster(ctx, spec)).To(Succeed())
		// The sockets are named: the IDs in PID files are those in the containers, and ovs-appctl(8) removes the file of a process that it does not find. A
		// daemon that was killed leaves its socket, so the newest one is that of the daemon that runs.
		for socket, want := range map[string]string{"ovn/ovn-controller": "ERR", "openvswitch/ovs-vswitchd": "WARN", "openvswitch/ovsdb-server": "WARN"} {
			Eventually(func() (string, error) {
				return suite.Node.Exec(ctx, node, "sh", "-c", "ovs-appctl --timeout=5 -t $(ls -t /run/"+socket+".*.ctl | head -n 1) vlog/list")
			}).WithContext(ctx).WithTimeout(30*time.Second).Should(MatchRegexp(`(?m)^reconnect\s+%s\s`, want), socket)
		}
		Eventually(func() (string, error) {
			return suite.Node.Exec(ctx, node, "curl", "-s", "http://127.0.0.1:10765/debug/pprof/goroutine?debug=1")
		}).WithContext(ctx).WithTimeout(30 * time.Second).Should(HavePrefix("goroutine profile: total"))

		pod := serve(ctx, "e2e-levels", "explained", 0)
		DeferCleanup(deleteNamespace, "e2e-levels")
		for app, want := range map[string]string{
			"kube-ovn-controller": fmt.Sprintf(`gave addresses to a port\t.*"port": "%s.%s"`, pod.Name, pod.Namespace),
			"kube-ovn-cni":        `attached an interface\t`,
			"kiln-operator":       `the pass (ran all phases|ended early)\t`,
		} {
			Eventually(func() (string, error) { return logsOf(ctx, app, since) }).WithContext(ctx).WithTimeout(time.Minute).Should(MatchRegexp(want), app)
		}

		Expect(suite.Cluster.ApplyOVNCluster(ctx, asInstalled())).To(Succeed())
		Eventually(func() error {
			_, err := suite.Node.Exec(ctx, node, "curl", "-s", "http://127.0.0.1:10765/debug/pprof/")
			return err
		}).WithContext(ctx).WithTimeout(30 * time.Second).ShouldNot(Succeed())
		Expect(suite.Cluster.WaitAvailable(ctx, func(m string) { GinkgoWriter.Println(m) })).To(Succeed())
		Expect(processes(ctx)).To(Equal(before))
	}, SpecTimeout(4*time.Minute))
})

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

// kilnPods returns Kiln's pods, or those with the label app.
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

// logsOf returns the logs of the pods with a label app.
func logsOf(ctx context.Context, app string, since time.Time) (string, error) {
	var all bytes.Buffer
	for _, pod := range kilnPods(ctx, app) {
		text, err := suite.Cluster.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{SinceTime: &metav1.Time{Time: since}}).DoRaw(ctx)
		if err != nil {
			return "", err
		}
		all.Write(text)
	}
	return all.String(), nil
}
