// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/test/cluster"
)

// sampleID is the recovery ID in config/samples/ovncluster_recovery.yaml.
const sampleID = "2026-11-21"

// ask requests a recovery; for sampleID it applies the sample.
func ask(ctx context.Context, id string, northbound, southbound v1alpha1.RecoverySource) {
	GinkgoHelper()
	if id == sampleID {
		Expect(cluster.ApplyFile(ctx, suite.Lab.Kubeconfig(), "../../config/samples/ovncluster_recovery.yaml")).To(Succeed())
		return
	}
	oc := &v1alpha1.OVNCluster{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.OVNClusterName}}
	Expect(suite.Objects.Patch(ctx, oc, client.RawPatch("application/merge-patch+json", fmt.Appendf(nil,
		`{"spec":{"central":{"recovery":{"id":%q,"northbound":%q,"southbound":%q}}}}`, id, northbound, southbound)))).To(Succeed())
}

// recovers destroys two of three members of both databases, requests a recovery, and waits until it is complete: all rows of the
// northbound database are restored, there are three members, and a new pod runs.
func recovers(ctx context.Context, id string, northbound, southbound v1alpha1.RecoverySource) {
	GinkgoHelper()
	var statuses []v1alpha1.DatabaseStatus
	for _, db := range trialDatabases {
		statuses = append(statuses, settled(ctx, db, 3))
	}
	before := northboundRows(ctx)
	Expect(len(before)).To(BeNumerically(">", 20))
	start := time.Now()
	for i, db := range trialDatabases {
		lose(ctx, db, statuses[i])
	}
	Eventually(func(g Gomega) {
		var oc v1alpha1.OVNCluster
		g.Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc)).To(Succeed())
		degraded := meta.FindStatusCondition(oc.Status.Conditions, v1alpha1.ConditionDegraded)
		g.Expect(degraded.Reason).To(Equal("QuorumLost"))
		g.Expect(degraded.Message).To(And(ContainSubstring("its data is lost"), ContainSubstring("spec.central.recovery")))
	}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
	what := fmt.Sprintf("northbound: %s, southbound: %s", northbound, southbound)
	within(start, 4*time.Second, what+" → the loss is reported")
	asked := time.Now()
	ask(ctx, id, northbound, southbound)
	completed := func(g Gomega, db trialDatabase) {
		r := databaseStatus(ctx, g, db).Recovery
		g.Expect(r).NotTo(BeNil())
		g.Expect(r.ID).To(Equal(id))
		g.Expect(r.Phase).To(Equal(v1alpha1.RecoveryCompleted))
	}
	for _, db := range trialDatabases {
		Eventually(completed).WithArguments(db).WithContext(ctx).WithTimeout(3 * time.Minute).WithPolling(time.Second).Should(Succeed())
	}
	within(asked, 10*time.Second, what+" → both databases are complete")
	_, err := suite.Cluster.Run(ctx, cluster.Server(membersNamespace, "recovered-"+id, controlPlane()))
	Expect(err).NotTo(HaveOccurred())
	within(asked, 13*time.Second, what+" → a new pod runs")
	removePods(ctx, membersNamespace, "recovered-"+id)
	for i, db := range trialDatabases {
		after := settled(ctx, db, 3)
		Expect(after.ClusterID).NotTo(Equal(statuses[i].ClusterID), db.workload)
	}
	Eventually(func() string { return difference(before, northboundRows(ctx)) }).WithContext(ctx).WithTimeout(time.Minute).WithPolling(time.Second).Should(BeEmpty())
	within(asked, 17*time.Second, what+" → three members of both")
}

// lose removes the files of the leader and of another member, and kills both members.
func lose(ctx context.Context, db trialDatabase, status v1alpha1.DatabaseStatus) {
	GinkgoHelper()
	victims := []string{status.Leader}
	for _, m := range status.Members {
		if m.Node != status.Leader && len(victims) < 2 {
			victims = append(victims, m.Node)
		}
	}
	for _, node := range victims {
		_, err := suite.Node.Exec(ctx, node, "rm", dataDir+db.file)
		Expect(err).NotTo(HaveOccurred())
	}
	for _, node := range victims {
		Expect(suite.kill(ctx, memberOn(ctx, db, node))).To(Succeed())
	}
}

// followLeaders appears in the rows of Services whose endpoints are the leaders. These change with a recovery.
const followLeaders = `kiln-owner=""Service/kube-system/ovn-`

// northboundRows returns the rows of the northbound database from its leader, without NB_Global, the rows that depend on the leaders, and
// the times of load balancers.
func northboundRows(ctx context.Context) []string {
	GinkgoHelper()
	status := databaseStatus(ctx, Default, trialDatabases[0])
	out, err := suite.Cluster.Exec(ctx, memberOn(ctx, trialDatabases[0], status.Leader), "ovsdb-client", "--timeout=20", "-f", "csv", "dump",
		"unix:/run/ovn/ovnnb_db.sock", "OVN_Northbound")
	Expect(err).NotTo(HaveOccurred())
	var rows []string
	table := ""
	for line := range strings.Lines(out) {
		if name, isTable := strings.CutSuffix(strings.TrimSpace(line), " table"); isTable {
			table = name
		} else if table != "NB_Global" && strings.TrimSpace(line) != "" {
			rows = append(rows, table+": "+strings.TrimSpace(line))
		}
	}
	rows = withoutTimes(rows) // groups of load balancers have those that depend on the leaders, too
	return slices.DeleteFunc(rows, func(row string) bool { return strings.Contains(row, followLeaders) })
}

var (
	// loadBalancer matches a load balancer with its UUID, its key, its time and its owner.
	loadBalancer = regexp.MustCompile(`^Load_Balancer: ([0-9a-f-]+),.*kiln-key=""([^~"]+)(~[0-9a-z]+)"", kiln-owner=""([^"]+)""`)
	listOfUUIDs  = regexp.MustCompile(`\[[^]]*\]`)
)

// withoutTimes sorts rows and replaces the UUIDs and keys of load balancers by names that do not depend on the time of their insertion
// (docs/decisions/2026-11-27-defects-of-northd.md).
func withoutTimes(rows []string) []string {
	var pairs []string
	for _, row := range rows {
		if m := loadBalancer.FindStringSubmatch(row); m != nil {
			uuid, key, time, owner := m[1], m[2], m[3], m[4]
			pairs = append(pairs, uuid, owner+"#"+key, key+time, key)
		}
	}
	replacer := strings.NewReplacer(pairs...)
	for i, row := range rows {
		rows[i] = listOfUUIDs.ReplaceAllStringFunc(replacer.Replace(row), func(list string) string {
			members := strings.Split(strings.Trim(list, "[]"), ", ")
			slices.Sort(members)
			return "[" + strings.Join(members, ", ") + "]"
		})
	}
	slices.Sort(rows)
	return rows
}

// difference returns the rows that only one of the two databases has.
func difference(before, after []string) string {
	var lines []string
	for _, row := range before {
		if _, there := slices.BinarySearch(after, row); !there {
			lines = append(lines, "- "+row)
		}
	}
	for _, row := range after {
		if _, there := slices.BinarySearch(before, row); !there {
			lines = append(lines, "+ "+row)
		}
	}
	return strings.Join(lines, "\n")
}

// backupVolume returns the claim of config/samples/ovncluster_backup.yaml and a volume for it.
func backupVolume() (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "ovn-backups", Namespace: "kube-system"}}
	return claim, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "e2e-ovn-backups"},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/e2e-ovn-backups"},
			},
		},
	}
}

// backsUpOnClaim applies the sample. Without a volume, the OVNCluster reports the missing claim and stays available. With a volume,
// the requested backup is made.
func backsUpOnClaim(ctx context.Context) {
	GinkgoHelper()
	_, volume := backupVolume()
	for _, node := range append([]string{controlPlane()}, suite.Workers...) {
		_, err := suite.Node.Exec(ctx, node, "install", "-d", "-m", "0777", volume.Spec.HostPath.Path)
		Expect(err).NotTo(HaveOccurred())
	}
	Expect(cluster.ApplyFile(ctx, suite.Lab.Kubeconfig(), "../../config/samples/ovncluster_backup.yaml")).To(Succeed())
	var oc v1alpha1.OVNCluster
	Eventually(func(g Gomega) {
		g.Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc)).To(Succeed())
		g.Expect(meta.FindStatusCondition(oc.Status.Conditions, v1alpha1.ConditionDegraded).Message).To(ContainSubstring("repair the claim kube-system/ovn-backups"))
		g.Expect(meta.IsStatusConditionTrue(oc.Status.Conditions, v1alpha1.ConditionAvailable)).To(BeTrue())
		g.Expect(oc.Status.Northbound.Requested("before-the-migration")).To(BeFalse())
	}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(time.Second).Should(Succeed())
	Expect(suite.Objects.Create(ctx, volume)).To(Succeed())
	Eventually(func(g Gomega) {
		g.Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc)).To(Succeed())
		g.Expect(oc.Status.Northbound.Requested("before-the-migration")).To(BeTrue())
		g.Expect(oc.Status.Northbound.LastBackupOnClaim.PersistentVolumeClaim).To(Equal("ovn-backups"))
		g.Expect(meta.IsStatusConditionFalse(oc.Status.Conditions, v1alpha1.ConditionDegraded)).To(BeTrue())
	}).WithContext(ctx).WithTimeout(2 * time.Minute).WithPolling(time.Second).Should(Succeed())
}
