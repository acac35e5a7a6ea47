// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/test/cluster"
)

const faultsNamespace = "e2e-faults"

// fault is one line of the table in docs/operations/reliability.md.
type fault struct {
	// did describes the fault.
	did    string
	inject injection
	// lasts is the duration of the fault.
	lasts time.Duration
	// stops is true when no pod gets an address before the fault ends. In other faults a standby takes over.
	stops bool
	// pauses is the pause of flows when the fault affects the datapath itself. In other faults flows lose nothing.
	pauses time.Duration
	// goesOn is true when pods that are created during the fault are ready before it ends.
	goesOn bool
	// writes and healed are the times in the table. The limits are three times as long, and longer on a slow machine.
	writes, healed time.Duration
}

// injection injects a fault, and returns the function that ends it, or nil if it ends by itself. It calls begin after its
// preparations.
type injection func(ctx context.Context, begin func()) (end func(ctx context.Context))

// observation holds the measurements of a fault.
type observation struct {
	writes  time.Duration // from the fault to the first address of a pod created after it
	address time.Duration // the longest time that a pod waited for its address
	pod     time.Duration // until pods that were created during the fault, one on each worker, are ready
	healed  time.Duration
	flows   flows
}

var _ = Describe("faults", Label("faults", disruptive, mayRestart), Ordered, ContinueOnFailure, func() {
	var p *pair
	var spec v1alpha1.OVNClusterSpec
	report := &strings.Builder{}

	BeforeAll(func(ctx SpecContext) {
		p = makePair(ctx, faultsNamespace)
		spec = asInstalled()
		labelNodes(ctx, membersLabel, new(""))
		makeNowhere(ctx) // without the label
		redundant := spec
		redundant.Central.Replicas, redundant.Central.NorthdReplicas, redundant.Controller.Replicas = 3, 2, 2
		redundant.Central.NodeSelector = map[string]string{membersLabel: ""}
		Expect(suite.Cluster.ApplyOVNCluster(ctx, redundant)).To(Succeed())
		healthy(ctx)
	}, NodeTimeout(5*time.Minute))
	AfterAll(func(ctx SpecContext) {
		if path := os.Getenv("FAULTS_REPORT"); path != "" {
			Expect(os.WriteFile(path, []byte(report.String()), 0o644)).To(Succeed())
		}
		shrink(ctx, spec)
		Expect(suite.Cluster.WaitAvailable(ctx, func(string) {})).To(Succeed())
		deleteNamespace(ctx, faultsNamespace)
		Expect(suite.Cluster.CoreV1().Nodes().Delete(ctx, nowhere, metav1.DeleteOptions{})).To(Succeed())
	}, NodeTimeout(8*time.Minute))

	judge := func(ctx SpecContext, f fault) {
		seen := watchFault(ctx, f, p)
		fmt.Fprintf(report, "| %s | %s | %s | %s | %s | %d, %d |\n", f.did, seconds(seen.writes), seconds(seen.address), seconds(seen.pod),
			seconds(seen.healed), seen.flows.named("ping to the other node, IPv4").Lost(), seen.flows.named("ping to the other node, IPv6").Lost())
		AddReportEntry(f.did, fmt.Sprintf("writes after %s, an address took at most %s, pods on both workers ready after %s, healed after %s",
			seconds(seen.writes), seconds(seen.address), seconds(seen.pod), seconds(seen.healed)))
		Expect(seen.flows.ofTCP().losses()).To(BeEmpty(), "requests without an answer")
		if f.pauses > 0 {
			Expect(seen.flows.gapsLongerThan(f.pauses)).To(BeEmpty(), "pauses")
		} else {
			Expect(seen.flows.withinNode().losses()).To(BeEmpty(), "losses within a node")
			Expect(seen.flows.gapsOver(bound(podsPause))).To(BeEmpty(), "losses between nodes")
		}
		limit := bound(f.writes + max(calibration.address, usualAddress))
		if f.stops {
			limit += f.lasts
		}
		Expect(seen.writes).To(BeNumerically("<=", limit), "the first address after the fault")
		Expect(seen.address).To(BeNumerically("<=", limit), "the address of a pod created during the fault")
		pods := f.lasts
		if !f.goesOn {
			pods += bound(f.writes + f.pauses + kubeletRetry + calibration.podStart)
		}
		Expect(seen.pod).To(BeNumerically("<=", pods), "pods on both workers")
		Expect(seen.healed).To(BeNumerically("<=", f.lasts+bound(f.healed+kubeletRetry+calibration.podStart)), "healed")
		Eventually(disagreements).WithContext(ctx).WithTimeout(time.Minute).WithPolling(time.Second).Should(BeEmpty())
	}
	for _, f := range faults() {
		It(f.did, Label(timed), func(ctx SpecContext) { judge(ctx, f) }, SpecTimeout(8*time.Minute))
	}
})

// kubeletRetry is the time after which the kubelet retries a failed ADD.
const kubeletRetry = 2 * time.Second

// podsPause is the longest gap in a flow when a pod starts on one of its nodes, with the userspace datapath (see watch): 10 to 170
// ms were measured.
const podsPause = 200 * time.Millisecond

// usualAddress is how long a pod waits for its address on a machine that starts five others.
const usualAddress = 300 * time.Millisecond

// watchFault injects a fault while flows run, pods request addresses, and pods start on both workers. It waits until everything is
// healthy.
func watchFault(ctx context.Context, f fault, p *pair) observation {
	GinkgoHelper()
	running := startFlows(ctx, p)
	running.resets = f.pauses > 0 // the fault kills ovs-vswitchd
	a := startArrivals(ctx, faultsNamespace)
	DeferCleanup(func() { a.enough(); a.forget() }) // if the spec fails earlier
	Expect(pause(ctx, time.Second)).To(Succeed())
	start := time.Now()
	end := f.inject(ctx, func() { start = time.Now() })
	during := startOnWorkers(ctx, "during")
	Expect(pause(ctx, f.lasts)).To(Succeed())
	if end != nil {
		end(ctx)
	}
	seen := observation{pod: during(ctx)}
	Eventually(a.waiting).WithContext(ctx).WithTimeout(3*time.Minute).WithPolling(everyArrival/5).Should(Or(BeEmpty(), HaveLen(1)), "pods without an address")
	healthy(ctx)
	// Recovery is complete only when each worker has served an ADD that began after the fault.
	startOnWorkers(ctx, "after")(ctx)
	seen.healed = time.Since(start)
	a.end(ctx, faultsNamespace)
	seen.writes, seen.address = a.since(start)
	seen.flows = running.end(ctx)
	removePods(ctx, faultsNamespace, namesOnWorkers("during")...)
	removePods(ctx, faultsNamespace, namesOnWorkers("after")...)
	return seen
}

func namesOnWorkers(when string) []string {
	var names []string
	for _, w := range suite.Workers {
		names = append(names, when+"-"+w)
	}
	return names
}

// startOnWorkers creates a pod on each worker. The returned function waits until all are ready, and returns the time of the
// slowest.
func startOnWorkers(ctx context.Context, when string) func(context.Context) time.Duration {
	begun := time.Now()
	type result struct {
		err  error
		took time.Duration
	}
	results := make(chan result, len(suite.Workers))
	for i, name := range namesOnWorkers(when) {
		go func() {
			limit, done := context.WithTimeout(ctx, 4*time.Minute)
			defer done()
			_, err := suite.Cluster.Run(limit, cluster.Server(faultsNamespace, name, suite.Workers[i]))
			for err != nil && pause(limit, everyArrival) == nil { // the fault may affect the API server
				_, err = suite.Cluster.Run(limit, cluster.Server(faultsNamespace, name, suite.Workers[i]))
			}
			results <- result{err, time.Since(begun)}
		}()
	}
	return func(context.Context) time.Duration {
		GinkgoHelper()
		var slowest time.Duration
		for range suite.Workers {
			r := <-results
			Expect(r.err).NotTo(HaveOccurred())
			slowest = max(slowest, r.took)
		}
		return slowest
	}
}

// struck holds the pods whose main process was killed, with their number of restarts before.
var struck = map[types.UID]int32{}

func strike(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	before := restarts(pod)
	Expect(suite.kill(ctx, pod)).To(Succeed())
	struck[pod.UID] = before
}

// daemon is a process of a node that was killed.
type daemon struct{ node, find, pid string }

// killed lists the daemons that must run again.
var killed []daemon

// killDaemon kills, on each of these nodes, the process that the command find returns.
func killDaemon(ctx context.Context, find string, nodes ...string) {
	GinkgoHelper()
	for _, node := range nodes {
		d := daemon{node: node, find: find, pid: strings.TrimSpace(exec(ctx, node, "bash", "-c", find))}
		Expect(d.pid).To(MatchRegexp(`^[0-9]+$`), "%s on %s", find, node)
		exec(ctx, node, "kill", "-9", d.pid)
		killed = append(killed, d)
	}
}

// healthy waits until killed containers and daemons run again, the pods of DaemonSets are ready, both databases have three members
// and Kiln is Available.
func healthy(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		pods, err := suite.Cluster.CoreV1().Pods(cluster.Namespace).List(ctx, metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		for i := range pods.Items {
			pod := &pods.Items[i]
			before, was := struck[pod.UID]
			g.Expect(!was || restarts(pod) > before).To(BeTrue(), "%s runs again", pod.Name)
			if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "DaemonSet" && pod.Spec.NodeName != nowhere {
				g.Expect(cluster.Ready(pod)).To(BeTrue(), "%s is ready", pod.Name)
			}
		}
		for _, d := range killed {
			pid, err := suite.Node.Exec(ctx, d.node, "bash", "-c", d.find)
			g.Expect(err).NotTo(HaveOccurred(), "%s on %s", d.find, d.node)
			g.Expect(strings.TrimSpace(pid)).To(And(MatchRegexp(`^[0-9]+$`), Not(Equal(d.pid))), "%s on %s", d.find, d.node)
		}
	}).WithContext(ctx).WithTimeout(3 * time.Minute).WithPolling(everyArrival).Should(Succeed())
	clear(struck)
	killed = nil
	for _, db := range trialDatabases {
		settled(ctx, db, 3)
	}
	Expect(suite.Cluster.WaitAvailable(ctx, func(string) {})).To(Succeed())
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func faults() []fault {
	ms, sec := time.Millisecond, time.Second
	list := []fault{
		{did: "operator: kill -9", healed: 2 * sec, inject: killAll("kiln-operator")},
		{did: "active ovn-northd and its standby: kill -9", writes: 700 * ms, healed: 3 * sec, inject: killAll("ovn-central-northd")},
		{did: "leading controller: kill -9", writes: 4300 * ms, healed: 4400 * ms, inject: killLeader},
		{did: "both controllers: kill -9", writes: 2900 * ms, healed: 3900 * ms, inject: killAll("kube-ovn-controller")},
		{did: "agents of all nodes: kill -9", healed: 1800 * ms, inject: killAll("kube-ovn-cni")},
		{did: "ovn-controller of both nodes: kill -9", healed: sec, inject: killOnWorkers("pidof ovn-controller")},
		{did: "both nodes' own ovsdb-server: kill -9", healed: sec, inject: killOnWorkers("pgrep -f '^/usr/sbin/ovsdb-server /etc/openvswitch'")},
		{did: "one node's ovs-vswitchd: kill -9", pauses: 1300 * ms, healed: 2 * sec, inject: killOnFirstWorker("pidof ovs-vswitchd")},
		{did: "certificates of databases, northd and controllers: expired, operator away for 60 s",
			lasts: time.Minute, stops: true, writes: 33 * sec, healed: 53 * sec, inject: expireCertificates},
		{did: "API server: stopped for 60 s", lasts: time.Minute, stops: true, writes: 6 * sec, healed: 6 * sec, inject: stopAPIServer},
		{did: "API server: both nodes cut off from it for 60 s", lasts: time.Minute, healed: 10 * sec, inject: cutOffFromAPIServer},
		{did: "leading controller's node: cut off from all others for 60 s",
			lasts: time.Minute, writes: 20 * sec, goesOn: true, healed: 10 * sec, inject: cutOffNodeOf(leadingController)},
		{did: "active ovn-northd's node: cut off from all others for 60 s",
			lasts: time.Minute, writes: 20 * sec, goesOn: true, healed: 10 * sec, inject: cutOffNodeOf(activeNorthd)},
		{did: "a port of another system has the name of a pod's for 20 s", lasts: 20 * sec, goesOn: true, healed: 10 * sec, inject: refusedPort},
		{did: "leading controller: its right to write taken from the database", writes: 4300 * ms, healed: 4400 * ms, inject: deposeLeader},
		{did: "first member of the northbound database silent for 60 s, leading controller: kill -9",
			lasts: time.Minute, writes: 8 * sec, goesOn: true, healed: 10 * sec, inject: silentMember},
		{did: "API server: 429 to nearly all that Kiln asks for 60 s", lasts: time.Minute, stops: true, writes: 6 * sec, healed: 6 * sec, inject: tooManyRequests},
		{did: "API server: 500 to all that Kiln writes for 60 s", lasts: time.Minute, stops: true, writes: 6 * sec, healed: 6 * sec, inject: internalErrors},
	}
	for _, db := range trialDatabases {
		list = append(list,
			fault{did: db.workload + ", leader stalled for 20 s", lasts: 20 * sec, writes: 8 * sec, healed: 10 * sec, inject: stallMember(db)},
			fault{did: db.workload + ", leader: kill -9", writes: 5500 * ms, healed: 10 * sec, inject: damage(db, leader, "true")},
			fault{did: db.workload + ", all members at once: kill -9", writes: 13 * sec, healed: 38 * sec, inject: killAll(db.workload)},
			fault{did: db.workload + ", leader cut off from the other members for 20 s", lasts: 20 * sec, writes: 5500 * ms, healed: 10 * sec, inject: cutOffLeader(db)},
			fault{did: db.workload + ", leader's file gone", writes: 5500 * ms, healed: 11 * sec, inject: damage(db, leader, "rm "+dataDir+db.file)},
			fault{did: db.workload + ", leader's directory gone", writes: 5500 * ms, healed: 12 * sec, inject: damage(db, leader, "rm -r "+dataDir+"*")},
			fault{did: db.workload + ", leader's file truncated", writes: 5500 * ms, healed: 10 * sec, inject: damage(db, leader, "truncate -s 100 "+dataDir+db.file)},
			fault{did: db.workload + ", leader's file replaced by an old copy", writes: 5500 * ms, healed: 19 * sec, inject: oldCopy(db)},
			fault{did: db.workload + ", leader's disk full for 20 s", lasts: 20 * sec, writes: 5500 * ms, healed: 91 * sec, inject: fullDisk(db, leader)},
			fault{did: db.workload + ", a follower's disk full for 20 s", lasts: 20 * sec, writes: sec, healed: 39 * sec, inject: fullDisk(db, follower)},
			fault{did: db.workload + ", a follower's file ends before its commit index", writes: sec, healed: 9 * sec, inject: damage(db, follower, commitBeyond(db))},
		)
	}
	// The leading controller may run on this node.
	return append(list, fault{did: "a node with members: power cut, and removed from the cluster", writes: 20 * sec, healed: 65 * sec, inject: loseNode})
}

func killAll(app string) injection {
	return func(ctx context.Context, _ func()) func(context.Context) {
		GinkgoHelper()
		pods, err := suite.Cluster.PodsOf(ctx, app)
		Expect(err).NotTo(HaveOccurred())
		Expect(pods).NotTo(BeEmpty())
		for i := range pods {
			if len(pods[i].Status.ContainerStatuses) > 0 { // every DaemonSet has a pod on nowhere, without containers
				strike(ctx, &pods[i])
			}
		}
		return nil
	}
}

// killLeader kills the controller that holds the Lease, unless that pod is terminating and about to release it.
func killLeader(ctx context.Context, _ func()) func(context.Context) {
	GinkgoHelper()
	strike(ctx, leadingController(ctx))
	return nil
}

func leadingController(ctx context.Context) *corev1.Pod {
	GinkgoHelper()
	var leading *corev1.Pod
	Eventually(func(g Gomega) {
		lease, err := suite.Cluster.CoordinationV1().Leases(cluster.Namespace).Get(ctx, "kube-ovn-controller", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		leading, err = suite.Cluster.CoreV1().Pods(cluster.Namespace).Get(ctx, *lease.Spec.HolderIdentity, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(leading.DeletionTimestamp).To(BeNil(), leading.Name)
	}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
	return leading
}

func killOnWorkers(find string) injection {
	return func(ctx context.Context, _ func()) func(context.Context) {
		GinkgoHelper()
		killDaemon(ctx, find, suite.Workers...)
		return nil
	}
}

func killOnFirstWorker(find string) injection {
	return func(ctx context.Context, _ func()) func(context.Context) {
		GinkgoHelper()
		killDaemon(ctx, find, suite.Workers[0])
		return nil
	}
}

// stopAPIServer stops the API server with SIGSTOP. A server that hangs is harder on clients than one that has ended.
func stopAPIServer(ctx context.Context, _ func()) func(context.Context) {
	GinkgoHelper()
	signal := func(ctx context.Context, s string) { // the lab has one, on its first node
		exec(ctx, controlPlane(), "bash", "-c", "kill -"+s+" $(pidof kube-apiserver)")
	}
	signal(ctx, "STOP")
	return func(ctx context.Context) { signal(ctx, "CONT") }
}

// loseNode simulates a machine that does not come back: it powers off a control-plane node with members and deletes its Node
// object. It ends when the databases have replaced its members.
func loseNode(ctx context.Context, begin func()) func(context.Context) {
	GinkgoHelper()
	var name string
	for _, m := range settled(ctx, trialDatabases[0], 3).Members {
		if m.Node != controlPlane() && m.Node != suite.Workers[0] && m.Node != suite.Workers[1] {
			name = m.Node
		}
	}
	if name == "" {
		// The suite's own lab has one control-plane node; `make faults` starts three.
		Skip("no member is on a node that can be spared: needs three nodes of the control plane")
	}
	begin()
	Expect(suite.Lab.Kill(name)).To(Succeed())
	Expect(suite.Cluster.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed())
	return func(ctx context.Context) {
		Eventually(func(g Gomega) {
			for _, db := range trialDatabases {
				for _, m := range databaseStatus(ctx, g, db).Members {
					g.Expect(m.Node).NotTo(Equal(name), db.workload)
				}
			}
		}).WithContext(ctx).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
	}
}
