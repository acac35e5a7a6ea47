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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kiln-net/kiln/agent/pinger"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/test/cluster"
)

// pingerFault makes one check fail on the first worker.
type pingerFault struct {
	name string
	// begin makes the fault and returns what ends it.
	begin func(context.Context) func(context.Context)
	// args are additional arguments of the job.
	args []string
	// fails are the checks that must fail, mayFail those that can.
	fails, mayFail []pinger.Check
	// series is a series of the pod's metrics that must be 1.
	series string
}

var _ = Describe("kube-ovn-pinger", Label(disruptive), Ordered, ContinueOnFailure, func() {
	var observer string // the first worker
	BeforeAll(func(ctx SpecContext) {
		observer = suite.Workers[0]
		Expect(suite.Cluster.ApplyOVNCluster(ctx, withPinger())).To(Succeed())
		Eventually(func(g Gomega) {
			pods, err := suite.Cluster.PodsOf(ctx, pinger.App)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(pods).To(HaveLen(len(suite.Lab.Nodes())))
			for i := range pods {
				g.Expect(cluster.Ready(&pods[i])).To(BeTrue(), pods[i].Name)
			}
		}).WithContext(ctx).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
	}, NodeTimeout(5*time.Minute))
	AfterAll(func(ctx SpecContext) {
		Expect(suite.Cluster.ApplyOVNCluster(ctx, asInstalled())).To(Succeed())
		Eventually(suite.Cluster.PodsOf).WithContext(ctx).WithArguments(pinger.App).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(BeEmpty())
	}, NodeTimeout(5*time.Minute))

	It("passes all checks on every node, and a job exits with 0", func(ctx SpecContext) {
		for _, n := range suite.Lab.Nodes() {
			var out string
			Eventually(func() (err error) {
				out, err = pingerJob(ctx, n.Name)
				return err
			}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
			for _, check := range []pinger.Check{
				pinger.CheckOpenVSwitch, pinger.CheckOVNController, pinger.CheckSouthbound, pinger.CheckPorts, pinger.CheckAPIServer,
				pinger.CheckInternalDNS, pinger.CheckPod, pinger.CheckNode, pinger.CheckExternal,
			} {
				Expect(out).To(MatchRegexp(`(?m)^ok +%s `, check))
			}
		}
		metrics := pingerMetrics(ctx, observer)
		Expect(metrics).To(ContainSubstring(fmt.Sprintf("pinger_ovs_up{nodeName=%q} 1", observer)))
		Expect(metrics).To(MatchRegexp(`pinger_pod_ping_count_total\{src_node_ip="[^"]+",src_node_name=%q,src_pod_ip="[^"]+",target_node_ip="[^"]+",target_node_name=%q`,
			observer, suite.Workers[1]))
	}, SpecTimeout(5*time.Minute))

	It("connects from every node to ports that kubectl ko names", func(ctx SpecContext) {
		api := fmt.Sprintf("tcp-%s-6443", suite.NodeAddresses[0])
		out, err := ko(ctx, "diagnose", "IPPorts", api)
		Expect(err).NotTo(HaveOccurred())
		Expect(strings.Count(out, "ok  port")).To(Equal(len(suite.Lab.Nodes())), out)
		out, err = ko(ctx, "diagnose", "IPPorts", api+fmt.Sprintf(",tcp-%s-9", suite.NodeAddresses[0]))
		Expect(err).To(MatchError(ContainSubstring("failed")), out)
		Expect(out).To(ContainSubstring("connection refused"))
	}, SpecTimeout(2*time.Minute))

	for _, f := range pingerFaults {
		It("fails for this fault only: "+f.name, func(ctx SpecContext) {
			Eventually(failedPings).WithContext(ctx).WithArguments(observer).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(BeEmpty())
			end := f.begin(ctx)
			Eventually(func(g Gomega) {
				failed := failedPings(ctx, observer, f.args...)
				g.Expect(failed).To(ContainElements(f.fails))
				for _, check := range failed {
					g.Expect(slices.Concat(f.fails, f.mayFail)).To(ContainElement(check))
				}
				if f.series != "" {
					g.Expect(pingerMetrics(ctx, observer)).To(ContainSubstring(fmt.Sprintf("%s{nodeName=%q} 1\n", f.series, observer)))
				}
			}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
			end(ctx)
			Eventually(failedPings).WithContext(ctx).WithArguments(observer).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(BeEmpty())
		}, SpecTimeout(7*time.Minute))
	}
})

// withPinger returns the spec of asInstalled with kube-ovn-pinger.
func withPinger() v1alpha1.OVNClusterSpec {
	GinkgoHelper()
	spec := asInstalled()
	spec.Pinger = v1alpha1.Pinger{
		Mode: v1alpha1.PingerEnabled, Interval: &metav1.Duration{Duration: 2 * time.Second}, ExternalAddresses: []string{suite.NodeAddresses[0]},
	}
	spec.Pinger.Resources = spec.Agent.Resources
	return spec
}

var pingerFaults = []pingerFault{
	{
		name: "the tunnel of the other worker is cut", begin: cutTunnel,
		// The node's answer to a pod passes the tunnel, too. Names fail if the pod that answers runs on that node.
		fails: []pinger.Check{pinger.CheckPod}, mayFail: []pinger.Check{pinger.CheckNode, pinger.CheckInternalDNS},
	},
	{
		name: "the other worker does not answer",
		begin: func(ctx context.Context) func(context.Context) {
			return cutOff(ctx, []string{"icmp type echo-request", "icmpv6 type echo-request"}, nil, suite.Workers[1])
		},
		fails: []pinger.Check{pinger.CheckNode},
	},
	{name: "DNS is stopped", begin: stopDNS, fails: []pinger.Check{pinger.CheckInternalDNS}, series: "pinger_internal_dns_unhealthy"},
	{
		name:  "ovn-controller is stopped",
		begin: stopDaemon("ovn-controller"), fails: []pinger.Check{pinger.CheckOVNController}, series: "pinger_ovn_controller_down",
	},
	{
		name: "a port is not bound",
		begin: func(ctx context.Context) func(context.Context) {
			node := suite.Workers[0]
			end := func(ctx context.Context) { vsctl(ctx, node, "--if-exists", "del-port", "br-int", "e2e-pinger") }
			DeferCleanup(func(ctx SpecContext) { end(ctx) }, NodeTimeout(time.Minute))
			vsctl(ctx, node, "add-port", "br-int", "e2e-pinger", "--", "set", "Interface", "e2e-pinger", "type=internal", "external_ids:iface-id=e2e-pinger")
			return end
		},
		fails: []pinger.Check{pinger.CheckPorts}, series: "pinger_inconsistent_port_binding",
	},
	{
		name: "the API server is cut off from pods", begin: cutPodsFromAPIServer, series: "pinger_apiserver_unhealthy",
		fails: []pinger.Check{pinger.CheckAPIServer, pinger.CheckPod}, // a job cannot read its targets either
	},
	{name: "an external address does not answer", begin: noFault, args: []string{"--external-address=192.0.2.254"}, fails: []pinger.Check{pinger.CheckExternal}},
	{name: "an external name does not exist", begin: noFault, args: []string{"--external-dns=e2e.invalid."}, fails: []pinger.Check{pinger.CheckExternalDNS}},
}

// vsctl runs ovs-vsctl(8) on a node, and returns its output.
func vsctl(ctx context.Context, node string, args ...string) string {
	GinkgoHelper()
	out, err := ko(ctx, append([]string{"vsctl", node}, args...)...)
	Expect(err).NotTo(HaveOccurred())
	return strings.TrimSpace(out)
}

func noFault(context.Context) func(context.Context) { return func(context.Context) {} }

// cutTunnel cuts tunnels to the second worker. With the userspace datapath they do not pass the kernel's netfilter hooks.
func cutTunnel(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	node := suite.Workers[1]
	if suite.Lab.KernelDatapath() {
		return cutOff(ctx, []string{"udp dport 6081"}, []string{"udp dport 6081"}, node)
	}
	// The bridge of the tunnel interface forwards its packets (docs/operations/datapaths.md).
	flows := func(ctx context.Context, command, suffix string, flags ...string) {
		GinkgoHelper()
		for _, protocol := range []string{"udp", "udp6"} {
			_, err := ko(ctx, slices.Concat([]string{"ofctl", node, command}, flags, []string{"br-phy", "priority=60000," + protocol + ",tp_dst=6081" + suffix})...)
			Expect(err).NotTo(HaveOccurred())
		}
	}
	end := func(ctx context.Context) { flows(ctx, "del-flows", "", "--strict") }
	DeferCleanup(func(ctx SpecContext) { end(ctx) }, NodeTimeout(time.Minute))
	flows(ctx, "add-flow", ",actions=drop")
	return end
}

// stopDNS scales the cluster's DNS to zero pods.
func stopDNS(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	deployments := suite.Cluster.AppsV1().Deployments(metav1.NamespaceSystem)
	scale := func(ctx context.Context, replicas int32) (before int32) {
		GinkgoHelper()
		s, err := deployments.GetScale(ctx, "coredns", metav1.GetOptions{})
		Expect(err).NotTo(HaveOccurred())
		before, s.Spec.Replicas = s.Spec.Replicas, replicas
		_, err = deployments.UpdateScale(ctx, "coredns", s, metav1.UpdateOptions{})
		Expect(err).NotTo(HaveOccurred())
		return before
	}
	before := scale(ctx, 0)
	end := func(ctx context.Context) { scale(ctx, before) }
	DeferCleanup(func(ctx SpecContext) { end(ctx) }, NodeTimeout(time.Minute))
	return end
}

// stopDaemon stops a daemon of the first worker's Open vSwitch by SIGSTOP.
func stopDaemon(program string) func(context.Context) func(context.Context) {
	return func(ctx context.Context) func(context.Context) {
		GinkgoHelper()
		return stopProcess(ctx, suite.Workers[0], "pidof "+program)
	}
}

// stopProcess stops, by SIGSTOP, the process of a node that the command find returns.
func stopProcess(ctx context.Context, node, find string) func(context.Context) {
	GinkgoHelper()
	signal := func(ctx context.Context, name string) {
		GinkgoHelper()
		exec(ctx, node, "sh", "-c", fmt.Sprintf("kill -%s $(%s)", name, find))
	}
	end := func(ctx context.Context) { signal(ctx, "CONT") }
	DeferCleanup(func(ctx SpecContext) { end(ctx) }, NodeTimeout(time.Minute))
	signal(ctx, "STOP")
	return end
}

// cutPodsFromAPIServer drops packets of pods to the API server, which come to its node by the tunnel. Nodes reach it.
func cutPodsFromAPIServer(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	return cutOff(ctx, []string{`iifname "ovn0" tcp dport 6443`}, nil, controlPlane())
}

// pingerPod returns the pod of kube-ovn-pinger on a node.
func pingerPod(ctx context.Context, node string) (*corev1.Pod, error) {
	pods, err := suite.Cluster.PodsOf(ctx, pinger.App)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		if pods[i].Spec.NodeName == node {
			return &pods[i], nil
		}
	}
	return nil, fmt.Errorf("no pod of %s on %s", pinger.App, node)
}

// pingerJob runs all checks from a node once. It returns an error if one fails.
func pingerJob(ctx context.Context, node string, args ...string) (string, error) {
	pod, err := pingerPod(ctx, node)
	if err != nil {
		return "", err
	}
	return suite.Cluster.Exec(ctx, pod, append([]string{"kiln", "pinger", "--mode=job"}, args...)...)
}

// failedPings returns the checks that fail in a job on a node.
func failedPings(ctx context.Context, node string, args ...string) []pinger.Check {
	out, err := pingerJob(ctx, node, args...)
	if err != nil && !strings.Contains(out, "FAILED") {
		return []pinger.Check{pinger.Check(err.Error())}
	}
	var failed []pinger.Check
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "FAILED" {
			failed = append(failed, pinger.Check(fields[1]))
		}
	}
	if len(failed) > 0 {
		GinkgoWriter.Println(out)
	}
	slices.Sort(failed)
	return slices.Compact(failed)
}

// pingerMetrics returns the metrics of the pod on a node.
func pingerMetrics(ctx context.Context, node string) string {
	GinkgoHelper()
	pod, err := pingerPod(ctx, node)
	Expect(err).NotTo(HaveOccurred())
	out, err := suite.Cluster.CoreV1().RESTClient().Get().Namespace(pod.Namespace).Resource("pods").Name(pod.Name + ":8080").SubResource("proxy").
		Suffix("metrics").DoRaw(ctx)
	Expect(err).NotTo(HaveOccurred())
	return string(out)
}
