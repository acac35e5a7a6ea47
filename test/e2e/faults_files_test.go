// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/sha1"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// part is a member's role in its Raft cluster.
type part string

const leader, follower part = "leader", "follower"

// theOne returns a database member with this role.
func theOne(ctx context.Context, db trialDatabase, p part) *corev1.Pod {
	GinkgoHelper()
	status := settled(ctx, db, 3)
	for _, m := range status.Members {
		if (m.Node == status.Leader) == (p == leader) {
			return memberOn(ctx, db, m.Node)
		}
	}
	Fail("no member is the " + string(p))
	return nil
}

// damage returns an injection that runs a script on the files of a member and kills the member.
func damage(db trialDatabase, p part, script string) injection {
	return func(ctx context.Context, begin func()) func(context.Context) {
		GinkgoHelper()
		pod := theOne(ctx, db, p)
		begin()
		exec(ctx, pod.Spec.NodeName, "sh", "-c", script)
		strike(ctx, pod)
		return nil
	}
}

// oldCopy returns an injection that replaces the leader's file by a copy from five seconds earlier.
func oldCopy(db trialDatabase) injection {
	return func(ctx context.Context, begin func()) func(context.Context) {
		GinkgoHelper()
		pod := theOne(ctx, db, leader)
		exec(ctx, pod.Spec.NodeName, "cp", dataDir+db.file, "/tmp/old.db")
		Expect(pause(ctx, 5*time.Second)).To(Succeed())
		begin()
		exec(ctx, pod.Spec.NodeName, "cp", "/tmp/old.db", dataDir+db.file)
		strike(ctx, pod)
		return nil
	}
}

// commitBeyond returns a script that adds a record to a clustered database file (ovsdb-tool(1)): its commit index is higher than
// the last entry of the file. A follower whose disk was full may leave such a file.
func commitBeyond(db trialDatabase) string {
	record := `{"commit_index":999999999}` + "\n"
	added := fmt.Sprintf("OVSDB CLUSTER %d %x\n%s", len(record), sha1.Sum([]byte(record)), record)
	server := "^[^ ]*ovsdb-server .*/" + strings.TrimSuffix(db.file, ".db") + "[.]"
	return fmt.Sprintf("kill -STOP $(pgrep -f '%s') && printf '%%s' '%s' >>%s", server, added, dataDir+db.file)
}

// fullDisk returns an injection that gives the node of a member with this role a small disk, and fills it.
func fullDisk(db trialDatabase, p part) injection {
	return func(ctx context.Context, begin func()) func(context.Context) {
		GinkgoHelper()
		node := theOne(ctx, db, p).Spec.NodeName
		exec(ctx, node, "sh", "-c", "mkdir /run/small && mount -t tmpfs -o size=64m none /run/small && cp -a "+dataDir+". /run/small && mount --bind /run/small "+dataDir)
		DeferCleanup(func(ctx SpecContext) {
			exec(ctx, node, "sh", "-c", "rm -f "+dataDir+"filler; umount "+dataDir+" && cp -a /run/small/. "+dataDir+" && umount /run/small && rmdir /run/small")
			strike(ctx, memberOn(ctx, db, node))
			healthy(ctx)
		}, NodeTimeout(4*time.Minute))
		strike(ctx, memberOn(ctx, db, node))
		healthy(ctx)
		become(ctx, db, node, p)
		begin()
		exec(ctx, node, "sh", "-c", "dd if=/dev/zero of="+dataDir+"filler bs=64k || true")
		return func(ctx context.Context) {
			told(ctx, v1alpha1.ConditionDegraded, "node "+node+": ovsdb-server could not write its database file")
			exec(ctx, node, "rm", dataDir+"filler")
		}
	}
}

// told waits until the message of a condition of the OVNCluster contains what.
func told(ctx context.Context, condition, what string) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		var oc v1alpha1.OVNCluster
		g.Expect(suite.Objects.Get(ctx, client.ObjectKey{Name: v1alpha1.OVNClusterName}, &oc)).To(Succeed())
		c := meta.FindStatusCondition(oc.Status.Conditions, condition)
		g.Expect(c).NotTo(BeNil())
		g.Expect(c.Message).To(ContainSubstring(what))
	}).WithContext(ctx).WithTimeout(time.Minute).WithPolling(everyArrival).Should(Succeed())
}

// become gives the member on a node this role: it kills the leader until the roles match.
func become(ctx context.Context, db trialDatabase, node string, p part) {
	GinkgoHelper()
	Eventually(func() bool {
		pod := theOne(ctx, db, leader)
		if (pod.Spec.NodeName == node) == (p == leader) {
			return true
		}
		strike(ctx, pod)
		healthy(ctx)
		return false
	}).WithContext(ctx).WithTimeout(3 * time.Minute).Should(BeTrue())
}
