// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/subnet"
	"github.com/kiln-net/kiln/controllers/vpc"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// newPod creates a pod in a subnet and waits until it has an address.
func (n *tenants) newPod(name, subnet string) *corev1.Pod {
	n.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Annotations: map[string]string{kubeovnv1.AnnotationLogicalSwitch.Key(): subnet},
		},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	n.Create(p)
	n.Eventually(func() string {
		if n.Get(p); p.Annotations[kubeovnv1.AnnotationAllocated.Key()] != "true" {
			return fmt.Sprintf("pod %s has no address: %v", name, p.Annotations)
		}
		return ""
	})
	return p
}

// named returns a row's name if it belongs to the tenant, or "".
func named(row nbtest.Row) string {
	switch name := row["name"].(string); name {
	case "tenant", "net", "pod.default":
		return name
	}
	return ""
}

func TestADeletedObjectWorksAsLongAsItIsUsed(t *testing.T) {
	n := start(t)
	v, s := n.newVpc("tenant", nil), n.newSubnet("net", "tenant", "10.0.0.0/24")
	n.Ready(v, s)
	p := n.newPod("pod", "net")
	n.Delete(v, s)
	n.Says(v, kubeovnv1.ConditionReady, metav1.ConditionFalse, vpc.ReasonSubnetsExist, "net (which is being deleted: see its conditions)")
	n.Says(s, kubeovnv1.ConditionReady, metav1.ConditionFalse, subnet.ReasonAddressesInUse, "1 in use: 10.0.0.2 (pod.default)")

	// After the loss of the database, or its restoration from a backup, the rows are written again.
	n.process.Stop()
	n.Database.Transact(nbtest.Op{"op": "delete", "table": "Logical_Router", "where": []any{}}, nbtest.Op{"op": "delete", "table": "Logical_Switch", "where": []any{}})
	n.run()
	for table, name := range map[string]string{"Logical_Router": "tenant", "Logical_Switch": "net", "Logical_Switch_Port": "pod.default"} {
		n.Rows(table, named, name)
	}

	n.Delete(p)
	n.Gone(s, v)
	for _, table := range []string{"Logical_Router", "Logical_Switch", "Logical_Switch_Port"} {
		n.Rows(table, named)
	}
}

func TestRowsAreRestoredAndOrphansAreDeleted(t *testing.T) {
	n := start(t)
	v, s := n.newVpc("tenant", nil), n.newSubnet("net", "tenant", "10.0.0.0/24")
	n.Ready(v, s)
	n.newPod("pod", "net")
	for _, owner := range []string{"Pod/default/pod", "Subnet//net", "Vpc//tenant", "Protection//tenant"} { // deleting the rows of a later owner deletes rows of earlier ones
		n.RestoresRows(owner)
	}
	n.process.Stop()
	for _, o := range []client.Object{s, v} {
		n.Delete(o)
		if n.Get(o) {
			n.LetGo(o)
		}
	}
	n.run()
	n.NoRows("Vpc//tenant")
	n.NoRows("Protection//tenant")
	n.NoRows("Subnet//net")
}

func TestFinalizersTakenOffByHandBlockNothing(t *testing.T) {
	n := start(t)
	v, s := n.newVpc("tenant", nil), n.newSubnet("net", "tenant", "10.0.0.0/24")
	n.Ready(v, s)
	p := n.newPod("pod", "net")
	// The subnet leaves the VPC after the VPC's controller has handled the deletion of the VPC, so only the subnet's controller can wake
	// it.
	n.process.Northbound().Hold()
	n.Delete(v)
	n.Get(v)
	n.LetGo(v)
	n.Gone(v)
	n.process.Northbound().AwaitHeld()
	later := n.newVpc("later", nil)
	n.Eventually(func() string {
		if n.Get(later); len(later.Finalizers) == 0 {
			return "the controller of VPCs has not seen a VPC that is newer than the deletion"
		}
		return ""
	})
	n.process.Northbound().Release()
	n.Says(s, kubeovnv1.ConditionReady, metav1.ConditionFalse, kubeovnv1.ReasonWaiting, "VPC tenant does not exist")
	n.Rows("Logical_Router", named)
	n.Rows("Logical_Switch_Port", named, "pod.default")

	again := n.newVpc("tenant", nil)
	n.Ready(again, s)
	n.Delete(again)
	n.Get(again)
	n.LetGo(again)
	n.Delete(s)
	n.Get(s)
	n.LetGo(s)
	n.Gone(again, s)
	n.Rows("Logical_Switch_Port", named)

	n.Ready(n.newVpc("tenant", nil), n.newSubnet("net", "tenant", "10.0.0.0/24"))
	n.Rows("Logical_Switch_Port", named, "pod.default")
	other := n.newPod("other", "net")
	if n.Get(p); other.Annotations[kubeovnv1.AnnotationIPAddress.Key()] == p.Annotations[kubeovnv1.AnnotationIPAddress.Key()] {
		t.Errorf("both pods got address %s", p.Annotations[kubeovnv1.AnnotationIPAddress.Key()])
	}
}
