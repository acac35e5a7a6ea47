// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/kubectlko"
	"github.com/kiln-net/kiln/test/cluster"
)

const (
	membersNamespace = "e2e-members"
	// membersLabel is the label of nodes that may run members. All nodes have it, since the lab has one control-plane node.
	membersLabel = "e2e.kiln/databases"
	dataDir      = "/etc/origin/ovn/"
	// rebuildPause is the pause of flows when the southbound database is rebuilt without any member left (docs/operations/reliability.md).
	rebuildPause = 10 * time.Second
)

// trialDatabase describes a database for the specs.
type trialDatabase struct {
	workload, file string
	of             func(v1alpha1.OVNClusterStatus) v1alpha1.DatabaseStatus
}

var trialDatabases = []trialDatabase{
	{"ovn-central-nb", "ovnnb_db.db", func(s v1alpha1.OVNClusterStatus) v1alpha1.DatabaseStatus { return s.Northbound }},
	{"ovn-central-sb", "ovnsb_db.db", func(s v1alpha1.OVNClusterStatus) v1alpha1.DatabaseStatus { return s.Southbound }},
}

// The databases grow to three members and shrink again once for all these specs.
var _ = Describe("three members:", Label(disruptive), Ordered, ContinueOnFailure, func() {
	var p *pair
	BeforeAll(func(ctx SpecContext) {
		p = makePair(ctx, membersNamespace)
		labelNodes(ctx, membersLabel, new(""))
	}, NodeTimeout(3*time.Minute))
	AfterAll(func(ctx SpecContext) {
		shrink(ctx, asInstalled())
		Expect(suite.Cluster.WaitAvailable(ctx, func(string) {})).To(Succeed())
		deleteNamespace(ctx, membersNamespace)
		claim, volume := backupVolume()
		Expect(client.IgnoreNotFound(suite.Objects.Delete(ctx, claim))).To(Succeed())
		Expect(client.IgnoreNotFound(suite.Objects.Delete(ctx, volume))).To(Succeed())
	}, NodeTimeout(6*time.Minute))

	Describe("databases", func() { databaseSpecs(&p) })
	Describe("upgrades", func() { upgradeSpecs(&p) })
})

// databaseSpecs are specs of three members.
func databaseSpecs(p **pair) {
	It("grow to three members, get over lost and damaged files of their leaders, and lose no packet", Label(timed), func(ctx SpecContext) {
		running := startFlows(ctx, *p)
		loops := loops()
		for i := range loops {
			start := time.Now()
			spec := grown(asInstalled())
			if i == 0 {
				spec.Central.Replicas, spec.Central.NorthdReplicas = 0, 0 // derived from the nodes with the label
			}
			Expect(suite.Cluster.ApplyOVNCluster(ctx, spec)).To(Succeed())
			for _, db := range trialDatabases {
				settled(ctx, db, 3)
			}
			var oc v1alpha1.OVNCluster
			Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc)).To(Succeed())
			Expect(oc.Status.Replicas.Central).To(Equal(int32(3)))
			AddReportEntry("growth", fmt.Sprintf("three members of each database after %s", time.Since(start).Round(time.Second)))
			for n, db := range trialDatabases {
				damages := []string{"rm", "truncate -s 100"}
				if i > 0 { // each database in turn
					damages = damages[(i+n)%2:][:1]
				}
				for _, damage := range damages {
					heals(ctx, db, damage)
				}
			}
			if i < loops-1 {
				Expect(suite.Cluster.ApplyOVNCluster(ctx, asInstalled())).To(Succeed())
				for _, db := range trialDatabases {
					settled(ctx, db, 1)
				}
			}
		}
		Expect(running.end(ctx).losses()).To(BeEmpty())
	}, SpecTimeout(40*time.Minute))

	It("recover from the loss of two of three members from a member, a backup and the API, and lose no packet", Label(timed, mayRestart), func(ctx SpecContext) {
		running := startFlows(ctx, *p)
		Expect(suite.Cluster.ApplyOVNCluster(ctx, grown(asInstalled()))).To(Succeed())
		Eventually(func(g Gomega) {
			g.Expect(databaseStatus(ctx, g, trialDatabases[0]).LastBackup).NotTo(BeNil())
		}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
		backsUpOnClaim(ctx)
		for _, source := range []v1alpha1.RecoverySource{v1alpha1.RecoverMember, v1alpha1.RecoverBackup, v1alpha1.RecoverRebuild} {
			By("recovering from " + string(source))
			id := strings.ToLower(string(source))
			if source == v1alpha1.RecoverMember {
				id = sampleID
			}
			recovers(ctx, id, source, v1alpha1.RecoverMember)
		}
		Expect(running.end(ctx).losses()).To(BeEmpty())
	}, SpecTimeout(10*time.Minute))

	It("recover from the loss of their leaders, and `kubectl ko perf` measures it", Label(timed, mayRestart), func(ctx SpecContext) {
		spec := grown(asInstalled())
		spec.Central.NorthdReplicas = 2
		Expect(suite.Cluster.ApplyOVNCluster(ctx, spec)).To(Succeed())
		for _, db := range trialDatabases {
			settled(ctx, db, 3)
		}
		changed(ctx, func(g Gomega, status v1alpha1.OVNClusterStatus) {
			g.Expect(meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionDegraded)).To(BeFalse(), status.Message)
		})
		out, err := ko(ctx, "perf", "--disrupt", "--yes", "-o", "json", "--node="+suite.Workers[0], "--node="+suite.Workers[1])
		Expect(err).NotTo(HaveOccurred(), out)
		var report kubectlko.PerfReport
		Expect(json.Unmarshal([]byte(out), &report)).To(Succeed())
		Expect(report.Recovery).To(HaveLen(3))
		for _, r := range report.Recovery {
			AddReportEntry("recovery", fmt.Sprintf("%+v", r))
			Expect(r.Start).To(And(BeNumerically(">", 0), BeNumerically("<", 30)), "%+v", r)
			Expect(r.Lost).To(BeNumerically("<=", r.Sent/100), "an existing flow needs no database: %+v", r)
		}
		expectNoRuns(ctx)
	}, SpecTimeout(15*time.Minute))

	It("recover when nothing of the southbound database is left", Label(timed, mayRestart), func(ctx SpecContext) {
		running := startFlows(ctx, *p)
		Expect(suite.Cluster.ApplyOVNCluster(ctx, grown(asInstalled()))).To(Succeed())
		recovers(ctx, "southbound", v1alpha1.RecoverMember, v1alpha1.RecoverRebuild)
		Expect(running.end(ctx).gapsLongerThan(rebuildPause)).To(BeEmpty())
		expectAllChecks(ctx)
	}, SpecTimeout(10*time.Minute))
}

// grown returns a deployment with three members of each database.
func grown(spec v1alpha1.OVNClusterSpec) v1alpha1.OVNClusterSpec {
	spec.Central.Replicas, spec.Central.NodeSelector = 3, map[string]string{membersLabel: ""}
	spec.Central.Backup = v1alpha1.Backup{Interval: metav1.Duration{Duration: time.Minute}, Keep: 3}
	return spec
}

// loops is the number of rounds in which members are added, damaged and removed.
func loops() int {
	if n, err := strconv.Atoi(os.Getenv("E2E_MEMBER_LOOPS")); err == nil {
		return n
	}
	return 1
}

// heals damages the file of a database's leader and kills the leader. It expects that another member leads, pods start, and the
// damaged member rejoins with a new server ID.
func heals(ctx context.Context, db trialDatabase, damage string) {
	GinkgoHelper()
	before := settled(ctx, db, 3)
	was := before.Members[0]
	for _, m := range before.Members {
		if m.Node == before.Leader {
			was = m
		}
	}
	By(fmt.Sprintf("%s of the file of %s, which leads on %s", damage, db.workload, was.Node))
	start := time.Now()
	_, err := suite.Node.Exec(ctx, was.Node, "sh", "-c", damage+" "+dataDir+db.file)
	Expect(err).NotTo(HaveOccurred())
	Expect(suite.kill(ctx, memberOn(ctx, db, was.Node))).To(Succeed())
	name := fmt.Sprintf("after-%s-%c", db.workload, damage[0])
	_, err = suite.Cluster.Run(ctx, cluster.Server(membersNamespace, name, controlPlane()))
	Expect(err).NotTo(HaveOccurred())
	within(start, 6*time.Second, db.workload+": "+damage+" → a new pod runs")
	Eventually(func(g Gomega) {
		for _, m := range databaseStatus(ctx, g, db).Members {
			g.Expect(m.ServerID).NotTo(Or(BeEmpty(), Equal(was.ServerID)), m.Node)
		}
	}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
	settled(ctx, db, 3)
	within(start, 11*time.Second, db.workload+": "+damage+" → the member is back")
}

// settled waits until a database has this many members, all joined and ready, and a leader.
func settled(ctx context.Context, db trialDatabase, members int) v1alpha1.DatabaseStatus {
	GinkgoHelper()
	var status v1alpha1.DatabaseStatus
	Eventually(func(g Gomega) {
		status = databaseStatus(ctx, g, db)
		g.Expect(status.Members).To(HaveLen(members))
		g.Expect(status.Leader).NotTo(BeEmpty())
		for _, m := range status.Members {
			g.Expect(m.ServerID).NotTo(BeEmpty(), m.Node)
			g.Expect(m.Role).NotTo(BeEmpty(), m.Node)
		}
		pods, err := suite.Cluster.PodsOf(ctx, db.workload)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(pods).To(HaveLen(members))
		for i := range pods {
			g.Expect(cluster.Ready(&pods[i])).To(BeTrue(), pods[i].Name)
		}
	}).WithContext(ctx).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
	return status
}

func databaseStatus(ctx context.Context, g Gomega, db trialDatabase) v1alpha1.DatabaseStatus {
	var oc v1alpha1.OVNCluster
	g.Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc)).To(Succeed())
	return db.of(oc.Status)
}

func memberOn(ctx context.Context, db trialDatabase, node string) *corev1.Pod {
	GinkgoHelper()
	pods, err := suite.Cluster.PodsOf(ctx, db.workload)
	Expect(err).NotTo(HaveOccurred())
	for i := range pods {
		if pods[i].Spec.NodeName == node {
			return &pods[i]
		}
	}
	Fail("no member on " + node)
	return nil
}

// shrink reduces each database to one member.
func shrink(ctx context.Context, spec v1alpha1.OVNClusterSpec) {
	GinkgoHelper()
	Expect(suite.Cluster.ApplyOVNCluster(ctx, spec)).To(Succeed())
	for _, db := range trialDatabases {
		settled(ctx, db, 1)
	}
	labelNodes(ctx, membersLabel, nil)
}

// labelNodes sets a label on all nodes, or removes it if value is nil.
func labelNodes(ctx context.Context, label string, value *string) {
	GinkgoHelper()
	labels, err := json.Marshal(map[string]*string{label: value})
	Expect(err).NotTo(HaveOccurred())
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":%s}}`, labels))
	var nodes corev1.NodeList
	Expect(suite.Objects.List(ctx, &nodes)).To(Succeed())
	for i := range nodes.Items {
		Expect(suite.Objects.Patch(ctx, &nodes.Items[i], patch)).To(Succeed())
	}
}
