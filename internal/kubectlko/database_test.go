// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/testing/golden"
	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestDatabases(t *testing.T) {
	w := newWorld(t)
	w.fails("the northbound database has no leader", "nbctl", "show")
	w.fails("the southbound database has no leader", "sb", "kick", "abcd")
	w.fails("no pod of ovs-ovn runs on node n1 in namespace kube-system", "vsctl", "n1", "show")
	w.fails("which node?", "ofctl")
	w.fails("no pod of ovs-ovn runs on node n1 in namespace elsewhere", "-n", "elsewhere", "appctl", "n1", "--help")

	oc := &v1alpha1.OVNCluster{}
	must.Succeed(w, w.objects.Get(t.Context(), client.ObjectKey{Name: v1alpha1.OVNClusterName}, oc))
	now := metav1.NewTime(time.Unix(1000, 0))
	oc.Status.Northbound = v1alpha1.DatabaseStatus{
		ClusterID: "c1", Leader: "cp-1", Term: 7,
		Members: []v1alpha1.DatabaseMember{
			{Node: "cp-1", Address: "192.0.2.1", Role: "leader", ServerID: "s1"}, {Node: "cp-2", Address: "2001:db8::2"},
		},
		LastBackup:        &v1alpha1.BackupStatus{Name: "ovnnb_db-a.db", Node: "cp-1", Rows: 12, Time: now},
		LastBackupOnClaim: &v1alpha1.BackupStatus{Name: "ovnnb_db-b.db", PersistentVolumeClaim: "backups", Rows: 11, Time: now},
		Recovery:          &v1alpha1.RecoveryStatus{ID: "r1", Phase: v1alpha1.RecoveryCompleted, Source: v1alpha1.RecoverMember},
	}
	must.Succeed(w, w.objects.Status().Update(t.Context(), oc))
	said, err := w.ko("nb", "status")
	must.Succeed(w, err)
	golden.Compare(t, "testdata/status.txt", []byte(said))
	w.fails("no pod of ovn-central-nb runs on node cp-2", "nb", "dbstatus") // after the attempt for cp-1
	w.fails("unknown command", "sb", "restore")
}
