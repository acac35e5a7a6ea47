// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/test/checks"
	"github.com/kiln-net/kiln/test/cluster"
)

const restartNamespace = "e2e-restart"

var _ = Describe("restarts", Label(disruptive), Ordered, func() {
	var p *pair

	BeforeAll(func(ctx SpecContext) {
		p = makePair(ctx, restartNamespace)
	}, NodeTimeout(3*time.Minute))
	AfterAll(func(ctx SpecContext) { deleteNamespace(ctx, restartNamespace) })

	// restart kills all pods of a component, waits until they run again, and starts a pod. It returns the flows meanwhile.
	restart := func(ctx context.Context, app string) flows {
		GinkgoHelper()
		running := startFlows(ctx, p)
		killComponent(ctx, app)
		_, err := suite.Cluster.Run(ctx, cluster.Server(restartNamespace, "after-"+app, controlPlane()))
		Expect(err).NotTo(HaveOccurred())
		removePods(ctx, restartNamespace, "after-"+app)
		return running.end(ctx)
	}

	DescribeTable("end no connection, and new pods start", Label(smoke), func(ctx SpecContext, app string) { restart(ctx, app) },
		Entry("controller", "kube-ovn-controller", SpecTimeout(4*time.Minute)),
		Entry("agent", "kube-ovn-cni", SpecTimeout(4*time.Minute)),
	)

	DescribeTable("lose no packet of a running pod", Label(timed), func(ctx SpecContext, app string) { Expect(restart(ctx, app).losses()).To(BeEmpty()) },
		Entry("operator", "kiln-operator", SpecTimeout(4*time.Minute)),
		Entry("northbound database", "ovn-central-nb", SpecTimeout(4*time.Minute)),
		Entry("southbound database", "ovn-central-sb", SpecTimeout(4*time.Minute)),
		Entry("northd", "ovn-central-northd", SpecTimeout(4*time.Minute)),
		Entry("controller", "kube-ovn-controller", SpecTimeout(4*time.Minute)),
		Entry("agent", "kube-ovn-cni", SpecTimeout(4*time.Minute)),
	)

	It("of Open vSwitch heal by themselves", Label(timed), func(ctx SpecContext) {
		// The checks' Service must exist before: on the userspace datapath the restart ends CoreDNS's connection to the API server, which its
		// client notices after 30 s (ReadIdleTimeout of HTTP/2 in client-go). Until then CoreDNS does not know new Services.
		expectAllChecks(ctx)
		pods, err := suite.Cluster.PodsOf(ctx, "ovs-ovn")
		Expect(err).NotTo(HaveOccurred())
		start := time.Now()
		for i := range pods {
			if pods[i].Spec.NodeName == suite.Workers[0] {
				Expect(suite.kill(ctx, &pods[i])).To(Succeed())
			}
		}
		Eventually(func(g Gomega) {
			g.Expect(pingThrough(ctx, p.from, p.to, time.Second)).To(Equal("0"))
			addr := cluster.PodAddrs(p.from)[0]
			_, err := suite.Node.Exec(ctx, suite.Workers[0], "ping", "-n", "-c", "1", "-W", "1", addr.String())
			g.Expect(err).NotTo(HaveOccurred(), "the node reaches its pod through ovn0")
		}).WithContext(ctx).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
		within(start, 4*time.Second, "Open vSwitch restarted → pods and ovn0 are back")
		// The kubelet's probes failed meanwhile. A Service has no endpoints until they succeed again.
		Eventually(failedChecks).WithContext(ctx).WithTimeout(2 * time.Minute).Should(BeEmpty())
	}, SpecTimeout(6*time.Minute))
})

// killComponent kills all pods of a component, and waits until they run again.
func killComponent(ctx context.Context, app string) {
	GinkgoHelper()
	pods, err := suite.Cluster.PodsOf(ctx, app)
	Expect(err).NotTo(HaveOccurred())
	Expect(pods).NotTo(BeEmpty())
	before := map[types.UID]int32{}
	for i := range pods {
		before[pods[i].UID] = restarts(&pods[i])
		Expect(suite.kill(ctx, &pods[i])).To(Succeed())
	}
	Eventually(func(g Gomega) {
		pods, err := suite.Cluster.PodsOf(ctx, app)
		g.Expect(err).NotTo(HaveOccurred())
		for i := range pods {
			g.Expect(cluster.Ready(&pods[i]) && restarts(&pods[i]) > before[pods[i].UID]).To(BeTrue(), pods[i].Name)
		}
	}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
}

// restarts returns the restart count of a pod's container.
func restarts(pod *corev1.Pod) int32 {
	if len(pod.Status.ContainerStatuses) == 0 {
		return 0
	}
	return pod.Status.ContainerStatuses[0].RestartCount
}

var transmitted = regexp.MustCompile(`(\d+) packets transmitted, (\d+) received`)

// pingThrough sends a packet every 50 ms and returns the number of lost packets, or the reason why it is unknown.
func pingThrough(ctx context.Context, from, to *corev1.Pod, d time.Duration) string {
	count := fmt.Sprint(int(d / (50 * time.Millisecond)))
	// A ping that lost packets exits with status 1, so the summary counts and not the status.
	out, err := suite.Cluster.Exec(ctx, from, "ping", "-n", "-q", "-i", "0.05", "-W", "1", "-c", count, cluster.PodAddrs(to)[0].String())
	m := transmitted.FindStringSubmatch(out)
	if m == nil {
		return fmt.Sprintf("unknown: %v: %s", err, out)
	}
	sent, _ := strconv.Atoi(m[1])
	received, _ := strconv.Atoi(m[2])
	return strconv.Itoa(sent - received)
}

func expectAllChecks(ctx context.Context) {
	GinkgoHelper()
	Expect(failedChecks(ctx)).To(BeEmpty())
}

func failedChecks(ctx context.Context) ([]string, error) {
	var failed []string
	err := checks.Run(ctx, suite.Env, func(r checks.Result) {
		GinkgoWriter.Printf("%-46s %s %s %s %v\n", r.Name, r.Family, r.Took.Round(time.Millisecond), r.Detail, r.Err)
		if r.Err != nil {
			failed = append(failed, fmt.Sprintf("%s (%s): %v", r.Name, r.Family, r.Err))
		}
	})
	if len(failed) > 0 { // the cause, if the wait for it takes too long
		note("%s: %q", CurrentSpecReport().FullText(), failed)
	}
	return failed, err
}
