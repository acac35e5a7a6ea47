// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/mistakes"
)

// namespaceOf creates a namespace, which stays for later tests: a real API server without controllers deletes none.
func (n *tenants) namespaceOf(name string) {
	n.Helper()
	err := n.Client.Create(n.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		n.Fatal(err)
	}
}

// placed creates a pod whose annotation says that it has an address of the default subnet. Its port needs the rows of its node, which this world
// does not have.
func (n *tenants) placed(namespace, name string) *corev1.Pod {
	n.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Annotations: map[string]string{kubeovnv1.AnnotationLogicalSwitch.Key(): kubeovnv1.DefaultSubnet},
		},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	n.Create(pod)
	return pod
}

// Pods that exist before a Subnet binds their namespace keep their addresses in the default subnet: users must see that the Subnet does not protect
// them.
func TestPodsThatExistBeforeTheirSubnet(t *testing.T) {
	n := start(t)
	n.namespaceOf("moved")
	first, second := n.placed("moved", "a"), n.placed("moved", "b")
	s := n.newSubnet("user-e", "", "10.60.0.0/24", "moved", "placement-absent")
	c := n.Says(s, kubeovnv1.ConditionPodsPlaced, metav1.ConditionFalse, "2 pods of namespaces moved have addresses of subnet ovn-default")
	mistakes.Sees(t, 38, c.Message)
	mistakes.Sees(t, 38, n.Says(s, kubeovnv1.ConditionReady, metav1.ConditionTrue, "applied, but 2 pods of namespaces moved").Message)
	n.Must(n.Client.Delete(t.Context(), first, client.GracePeriodSeconds(0)))
	n.Says(s, kubeovnv1.ConditionPodsPlaced, metav1.ConditionFalse, "1 pods of namespaces moved")
	n.Must(n.Client.Delete(t.Context(), second, client.GracePeriodSeconds(0)))
	c = n.Says(s, kubeovnv1.ConditionPodsPlaced, metav1.ConditionTrue, "namespaces placement-absent do not exist")
	mistakes.Sees(t, 39, c.Message)
	mistakes.Sees(t, 39, n.Says(s, kubeovnv1.ConditionReady, metav1.ConditionTrue, "applied, but namespaces placement-absent do not exist").Message)
	n.namespaceOf("placement-absent")
	n.Says(s, kubeovnv1.ConditionPodsPlaced, metav1.ConditionTrue, "no pod of its namespaces is in ovn-default")
	if c = n.Says(s, kubeovnv1.ConditionReady, metav1.ConditionTrue); c.Message != "applied" {
		t.Errorf("Ready says %q", c.Message)
	}
}

func TestPodsThatExistBeforeTheirVpc(t *testing.T) {
	n := start(t)
	n.namespaceOf("moved-to-vpc")
	pod := n.placed("moved-to-vpc", "a")
	n.newSubnet("tenant-net", "placing", "10.61.0.0/24")
	v := n.newVpc("placing", func(s *kubeovnv1.VpcSpec) { s.Namespaces, s.DefaultSubnet = []string{"moved-to-vpc"}, "tenant-net" })
	n.Says(v, kubeovnv1.ConditionPodsPlaced, metav1.ConditionFalse, "1 pods of namespaces moved-to-vpc")
	n.Says(v, kubeovnv1.ConditionReady, metav1.ConditionTrue, "applied, but 1 pods of namespaces moved-to-vpc")
	n.Must(n.Client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	n.Says(v, kubeovnv1.ConditionPodsPlaced, metav1.ConditionTrue)
}
