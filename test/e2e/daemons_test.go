// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	"github.com/kiln-net/kiln/test/cluster"
)

const daemonsNamespace = "e2e-daemons"

// crash is a way in which processes of a node's Open vSwitch end.
type crash struct {
	name string
	// command runs on the node.
	command string
	// deletes the pod instead.
	deletes bool
	// find prints the process that must have been replaced.
	find string
	// pauses is the pause of flows with the userspace datapath, which is part of ovs-vswitchd. The kernel's goes on. Without its database,
	// ovs-vswitchd forwards no packets of interfaces of the kernel: its main thread does that, while it has the lock of the database.
	pauses time.Duration
}

var crashes = []crash{
	{name: "ovs-vswitchd: kill -9", command: "kill -9 $(pidof ovs-vswitchd)", find: "pidof ovs-vswitchd", pauses: 1300 * time.Millisecond},
	{name: "ovn-controller: kill -9", command: "kill -9 $(pidof ovn-controller)", find: "pidof ovn-controller"},
	{name: "ovsdb-server: kill -9", command: "kill -9 $(" + nodeDatabase + ")", find: nodeDatabase, pauses: 1300 * time.Millisecond},
	{name: "the container: kill -9", command: "kill -9 $(pgrep -of '^/usr/bin/kiln ovs')", find: "pidof ovs-vswitchd", pauses: 5 * time.Second},
	{name: "the pod: deleted", deletes: true, find: "pidof ovs-vswitchd", pauses: 5 * time.Second},
}

// newFlowWait bounds the time until a new flow is served: ovn-controller connects again after a second, and a container or a pod has to start.
const newFlowWait = 10 * time.Second

// healthyFor is the time without a crash before each crash.
const healthyFor = 32 * time.Second

// nodeDatabase finds the ovsdb-server of a node, not of the central databases.
const nodeDatabase = "pgrep -f '^/usr/sbin/ovsdb-server /etc/openvswitch'"

// Known flows, of which the datapath has had packets, and a new one, which ovs-vswitchd has to set up. CRASHES is the number of rounds (1);
// CRASHES_REPORT is a file for the table of docs/operations/reliability.md.
var _ = Describe("crashes of a node's Open vSwitch", Label(timed, "crashes", disruptive, mayRestart), Ordered, ContinueOnFailure, func() {
	var p *pair
	var stranger *corev1.Pod
	report := &strings.Builder{}

	BeforeAll(func(ctx SpecContext) {
		p = makePair(ctx, daemonsNamespace)
		var err error
		stranger, err = suite.Cluster.Run(ctx, cluster.Server(daemonsNamespace, "stranger", suite.Workers[1]))
		Expect(err).NotTo(HaveOccurred())
	}, NodeTimeout(5*time.Minute))
	AfterAll(func(ctx SpecContext) {
		if path := os.Getenv("CRASHES_REPORT"); path != "" {
			Expect(os.WriteFile(path, []byte(report.String()), 0o644)).To(Succeed())
		}
		deleteNamespace(ctx, daemonsNamespace)
	}, NodeTimeout(5*time.Minute))

	rounds, _ := strconv.Atoi(os.Getenv("CRASHES"))
	rounds = max(rounds, 1)
	for _, c := range crashes {
		It(c.name, func(ctx SpecContext) {
			var lost []string
			var waits []time.Duration
			for range rounds {
				flows, wait := c.once(ctx, p, stranger)
				far, near := 0, 0
				for _, f := range flows {
					if f.protocol == icmp && f.sameNode {
						near += f.Lost()
					} else if f.protocol == icmp {
						far += f.Lost()
					}
				}
				lost = append(lost, fmt.Sprintf("%d+%d", near, far))
				waits = append(waits, wait)
				Expect(wait).To(BeNumerically("<", bound(newFlowWait)), "until a new flow is served")
				if suite.Lab.KernelDatapath() {
					Expect(flows.losses()).To(BeEmpty())
				} else if c.pauses > 0 {
					Expect(flows.gapsLongerThan(c.pauses)).To(BeEmpty(), "pauses")
				} else {
					Expect(flows.withinNode().losses()).To(BeEmpty(), "losses within a node")
					Expect(flows.gapsOver(bound(podsPause))).To(BeEmpty(), "losses between nodes")
				}
			}
			slices.Sort(waits)
			median, longest := seconds(waits[len(waits)/2]), seconds(waits[len(waits)-1])
			AddReportEntry(c.name, fmt.Sprintf("packets lost within the node and to the other: %s; a new flow is served after %s (median), at most %s", strings.Join(lost, " "), median, longest))
			fmt.Fprintf(report, "| %s | %s | %s | %s |\n", c.name, strings.Join(lost, " "), median, longest)
		}, SpecTimeout(time.Duration(rounds)*2*time.Minute))
	}
})

// firstReply is the time of the first answer in the output of `ping -D`.
var firstReply = regexp.MustCompile(`(?m)^\[([0-9.]+)\] \d+ bytes from `)

// once crashes Open vSwitch of the first worker while flows run. It returns the flows and the time until the first packet to the stranger is
// answered, which is first sent at the time of the crash. The stranger got no packet for longer than a flow of the datapath is kept (10 s),
// and daemons have run for longer than their supervisor's limit (30 s), so that it restarts them without a pause.
func (c crash) once(ctx context.Context, p *pair, stranger *corev1.Pod) (flows, time.Duration) {
	GinkgoHelper()
	node := suite.Workers[0]
	running := startFlows(ctx, p)
	running.resets = c.pauses > 0 && !suite.Lab.KernelDatapath()
	_, err := suite.Cluster.Exec(ctx, p.from, "ping", "-c", "1", "-W", "5", stranger.Status.PodIP) // resolves its MAC address
	Expect(err).NotTo(HaveOccurred())
	Expect(pause(ctx, healthyFor)).To(Succeed())
	before := strings.TrimSpace(exec(ctx, node, "bash", "-c", c.find))
	at := time.Now().Add(3 * time.Second) // enough for both commands to start
	await := fmt.Sprintf("while [ ${EPOCHREALTIME/./} -lt %d ]; do read -t 0.002 -u 9; done 9<> <(:); ", at.UnixMicro())
	met := make(chan string, 1)
	go func() {
		script := await + "ping -D -n -i 0.02 -c 1 -w 60 " + stranger.Status.PodIP
		out, err := suite.Cluster.Exec(ctx, p.from, "bash", "-c", script)
		met <- fmt.Sprint(out, err)
	}()
	if c.deletes {
		pod := ovsOf(ctx, node)
		Expect(pod).NotTo(BeNil())
		Expect(pause(ctx, time.Until(at))).To(Succeed())
		Expect(suite.Objects.Delete(ctx, pod)).To(Succeed())
	} else {
		exec(ctx, node, "bash", "-c", await+c.command)
	}
	out := <-met
	reply := firstReply.FindStringSubmatch(out)
	Expect(reply).NotTo(BeNil(), out)
	answered, err := strconv.ParseFloat(reply[1], 64)
	Expect(err).NotTo(HaveOccurred())
	Eventually(func(g Gomega) {
		now, err := suite.Node.Exec(ctx, node, "bash", "-c", c.find)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(strings.TrimSpace(now)).To(And(MatchRegexp(`^[0-9]+$`), Not(Equal(before))))
		pod := ovsOf(ctx, node)
		g.Expect(pod).NotTo(BeNil())
		g.Expect(cluster.Ready(pod)).To(BeTrue())
	}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(200 * time.Millisecond).Should(Succeed())
	Expect(suite.Cluster.WaitAvailable(ctx, func(string) {})).To(Succeed())
	// The first answer may have come just before the crash. All flows must run again before they end.
	_, err = suite.Cluster.Exec(ctx, p.from, "ping", "-n", "-i", "0.02", "-c", "1", "-w", "60", stranger.Status.PodIP)
	Expect(err).NotTo(HaveOccurred())
	return running.end(ctx), time.UnixMicro(int64(answered * 1e6)).Sub(at)
}

// ovsOf returns the pod with a node's Open vSwitch, or nil while there is none.
func ovsOf(ctx context.Context, node string) *corev1.Pod {
	GinkgoHelper()
	pods, err := suite.Cluster.PodsOf(ctx, "ovs-ovn")
	Expect(err).NotTo(HaveOccurred())
	i := slices.IndexFunc(pods, func(pod corev1.Pod) bool { return pod.Spec.NodeName == node && pod.DeletionTimestamp == nil })
	if i < 0 {
		return nil
	}
	return &pods[i]
}
