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

// fault is one line of the table in docs/reliability.md.
type fault struct {
	// did is what was done.
	did string
	// inject does it, and returns how it is ended, if it does not end by itself.
	inject func(ctx context.Context) (end func(ctx context.Context))
	// lasts is how long it is left so.
	lasts time.Duration
	// forwards is false when what forwards packets is hit itself: then losses are told, and no failure.
	forwards bool
}

// observation is what was seen of one.
type observation struct {
	writes, pod, healed time.Duration
	lost                map[string]int
}

var _ = Describe("faults", Label("faults"), Ordered, ContinueOnFailure, func() {
	var from, to *corev1.Pod
	var spec v1alpha1.OVNClusterSpec
	report := &strings.Builder{}

	BeforeAll(func(ctx SpecContext) {
		from, to = makePair(ctx, faultsNamespace)
		spec = asInstalled()
		labelNodes(ctx, membersLabel, new(""))
		makeNowhere(ctx) // without the label
		redundant := spec
		redundant.Central.Replicas, redundant.Central.NorthdReplicas, redundant.Controller.Replicas = 3, 2, 2
		redundant.Central.NodeSelector = map[string]string{membersLabel: ""}
		redundant.Controller.NodeSelector = redundant.Central.NodeSelector
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

	try := func(ctx SpecContext, f fault) {
		seen := watchFault(ctx, f, from, to)
		fmt.Fprintf(report, "| %s | %s | %s | %s | %d, %d |\n", f.did, seconds(seen.writes), seconds(seen.pod), seconds(seen.healed),
			seen.lost["IPv4"], seen.lost["IPv6"])
		AddReportEntry(f.did, fmt.Sprintf("writes after %s, a pod waited at most %s, healed after %s, lost %v",
			seconds(seen.writes), seconds(seen.pod), seconds(seen.healed), seen.lost))
		if f.forwards {
			Expect(seen.lost).To(Equal(map[string]int{"IPv4": 0, "IPv6": 0}), "packets lost")
		}
		Eventually(disagreements).WithContext(ctx).WithTimeout(time.Minute).WithPolling(time.Second).Should(BeEmpty())
	}
	for _, f := range faults() {
		It(f.did, func(ctx SpecContext) { try(ctx, f) }, SpecTimeout(8*time.Minute))
	}
})

// watchFault injects a fault while packets flow every 10 ms in both families and pods ask for addresses, and waits until all is well again.
func watchFault(ctx context.Context, f fault, from, to *corev1.Pod) observation {
	GinkgoHelper()
	lost := map[string]func(context.Context) []int{}
	for _, a := range cluster.PodAddrs(to) {
		lost["IPv"+map[bool]string{true: "4", false: "6"}[a.Is4()]] = startPing(ctx, from, a)
	}
	a := startArrivals(ctx, faultsNamespace)
	DeferCleanup(func() { a.enough(); a.forget() }) // when the spec fails on its way
	Expect(pause(ctx, time.Second)).To(Succeed())
	start := time.Now()
	end := f.inject(ctx)
	Expect(pause(ctx, f.lasts)).To(Succeed())
	if end != nil {
		end(ctx)
	}
	// The pods' own view: until one that came after the fault has its address, nothing is healed.
	Expect(pause(ctx, time.Second)).To(Succeed())
	Eventually(a.waiting).WithContext(ctx).WithTimeout(3*time.Minute).WithPolling(everyArrival/5).Should(Or(BeEmpty(), HaveLen(1)), "pods without an address")
	healthy(ctx)
	seen := observation{healed: time.Since(start), lost: map[string]int{}}
	a.end(ctx, faultsNamespace)
	seen.writes, seen.pod = a.since(start)
	for family, f := range lost {
		seen.lost[family] = len(f(ctx))
	}
	return seen
}

// struck are the pods whose main process was killed, and how often each had been started then.
var struck = map[types.UID]int32{}

func strike(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	before := restarts(pod)
	Expect(suite.kill(ctx, pod)).To(Succeed())
	struck[pod.UID] = before
}

// healthy waits until what was killed runs again, both databases have three members and every component is as it should be.
func healthy(ctx context.Context) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		pods, err := suite.Cluster.CoreV1().Pods(cluster.Namespace).List(ctx, metav1.ListOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		for i := range pods.Items {
			before, was := struck[pods.Items[i].UID]
			g.Expect(!was || restarts(&pods.Items[i]) > before).To(BeTrue(), "%s runs again", pods.Items[i].Name)
		}
	}).WithContext(ctx).WithTimeout(3 * time.Minute).WithPolling(everyArrival).Should(Succeed())
	clear(struck)
	for _, db := range trialDatabases {
		settled(ctx, db, 3)
	}
	Expect(suite.Cluster.WaitAvailable(ctx, func(string) {})).To(Succeed())
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

func faults() []fault {
	list := []fault{
		{did: "operator: kill -9", forwards: true, inject: killAll("kiln-operator")},
		{did: "active ovn-northd and its standby: kill -9", forwards: true, inject: killAll("ovn-central-northd")},
		{did: "leading controller: kill -9", forwards: true, inject: killLeader},
		{did: "both controllers: kill -9", forwards: true, inject: killAll("kube-ovn-controller")},
		{did: "agents of all nodes: kill -9", forwards: true, inject: killAll("kube-ovn-cni")},
		{did: "ovn-controller of both nodes: kill -9", forwards: true, inject: onWorkers("kill -9 $(pidof ovn-controller)")},
		{did: "both nodes' own ovsdb-server: kill -9", forwards: true, inject: onWorkers("kill -9 $(pgrep -f '^/usr/sbin/ovsdb-server /etc/openvswitch')")},
		{did: "one node's ovs-vswitchd: kill -9", lasts: 5 * time.Second, inject: onFirstWorker("kill -9 $(pidof ovs-vswitchd)")},
		{did: "certificates of databases, northd and controllers: expired, operator away for 60 s", forwards: true, lasts: time.Minute, inject: expireCertificates},
		{did: "API server: stopped for 60 s", forwards: true, lasts: time.Minute, inject: stopAPIServer},
	}
	for _, db := range trialDatabases {
		list = append(list,
			fault{did: db.workload + ", leader: kill -9", forwards: true, inject: damage(db, leader, "true")},
			fault{did: db.workload + ", all members at once: kill -9", forwards: true, inject: killAll(db.workload)},
			fault{did: db.workload + ", leader's file gone", forwards: true, inject: damage(db, leader, "rm "+dataDir+db.file)},
			fault{did: db.workload + ", leader's directory gone", forwards: true, inject: damage(db, leader, "rm -r "+dataDir+"*")},
			fault{did: db.workload + ", leader's file truncated", forwards: true, inject: damage(db, leader, "truncate -s 100 "+dataDir+db.file)},
			fault{did: db.workload + ", leader's file replaced by an old copy", forwards: true, inject: oldCopy(db)},
			fault{did: db.workload + ", leader's disk full for 20 s", forwards: true, lasts: 20 * time.Second, inject: fullDisk(db, leader)},
			fault{did: db.workload + ", a follower's disk full for 20 s", forwards: true, lasts: 20 * time.Second, inject: fullDisk(db, follower)},
			fault{did: db.workload + ", a follower's file ends before what it says is committed", forwards: true, inject: damage(db, follower, commitBeyond(db))},
		)
	}
	return append(list, fault{did: "a node with members: power cut, and removed from the cluster", forwards: true, inject: loseNode})
}

func killAll(app string) func(context.Context) func(context.Context) {
	return func(ctx context.Context) func(context.Context) {
		GinkgoHelper()
		pods, err := suite.Cluster.PodsOf(ctx, app)
		Expect(err).NotTo(HaveOccurred())
		Expect(pods).NotTo(BeEmpty())
		for i := range pods {
			if len(pods[i].Status.ContainerStatuses) > 0 { // nowhere has a pod of every DaemonSet, and runs none
				strike(ctx, &pods[i])
			}
		}
		return nil
	}
}

// killLeader kills the controller that holds the Lease: not one that is about to go and hands it over.
func killLeader(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	var leading *corev1.Pod
	Eventually(func(g Gomega) {
		lease, err := suite.Cluster.CoordinationV1().Leases(cluster.Namespace).Get(ctx, "kube-ovn-controller", metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		leading, err = suite.Cluster.CoreV1().Pods(cluster.Namespace).Get(ctx, *lease.Spec.HolderIdentity, metav1.GetOptions{})
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(leading.DeletionTimestamp).To(BeNil(), leading.Name)
	}).WithContext(ctx).WithTimeout(time.Minute).Should(Succeed())
	strike(ctx, leading)
	return nil
}

func onWorkers(script string) func(context.Context) func(context.Context) {
	return func(ctx context.Context) func(context.Context) {
		GinkgoHelper()
		for _, w := range suite.Workers {
			exec(ctx, w, "bash", "-c", script)
		}
		return nil
	}
}

func onFirstWorker(script string) func(context.Context) func(context.Context) {
	return func(ctx context.Context) func(context.Context) {
		GinkgoHelper()
		exec(ctx, suite.Workers[0], "bash", "-c", script)
		return nil
	}
}

// stopAPIServer lets it hang, which is harder on clients than to be gone.
func stopAPIServer(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	signal := func(ctx context.Context, s string) { // the lab has one, on its first node
		exec(ctx, controlPlane(), "bash", "-c", "kill -"+s+" $(pidof kube-apiserver)")
	}
	signal(ctx, "STOP")
	return func(ctx context.Context) { signal(ctx, "CONT") }
}

// loseNode takes the power from a node of the control plane that holds members, and its object from the cluster, as an administrator does
// with a machine that will not come back. It ends when the databases have put others in the place of its members.
func loseNode(ctx context.Context) func(context.Context) {
	GinkgoHelper()
	var name string
	for _, m := range settled(ctx, trialDatabases[0], 3).Members {
		if m.Node != controlPlane() && m.Node != suite.Workers[0] && m.Node != suite.Workers[1] {
			name = m.Node
		}
	}
	if name == "" {
		// The suite's own lab has one node of the control plane; make faults brings three up.
		Skip("no member is on a node that can be spared: needs three nodes of the control plane")
	}
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
