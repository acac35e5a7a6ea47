// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// A subnet of a custom VPC may select namespaces that its VPC does not list: their pods get no address of the subnet, and its users must see it.
func TestSelectedNamespacesThatTheVpcDoesNotList(t *testing.T) {
	n := start(t)
	shop := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "selected-shop"}}
	if err := n.Client.Create(n.Context(), shop); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	n.Get(shop)
	n.Change(shop, func() { shop.Labels = map[string]string{"team": "sales"} })
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}}
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "selecting"}, Spec: kubeovnv1.SubnetSpec{
		Vpc: "tenant", CIDRBlock: "10.50.0.0/24",
		NamespaceSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"team": "sales"}}, {MatchLabels: map[string]string{"not a label": ""}}},
	}}
	n.Create(vpc, s)
	n.Says(s, kubeovnv1.ConditionNamespacesBound, metav1.ConditionFalse, "does not serve selected-shop, which VPC tenant does not list")

	n.Change(vpc, func() { vpc.Spec.Namespaces = []string{"selected-shop"} })
	n.Says(s, kubeovnv1.ConditionNamespacesBound, metav1.ConditionTrue)
	n.Change(vpc, func() { vpc.Spec.Namespaces = nil })
	n.Says(s, kubeovnv1.ConditionNamespacesBound, metav1.ConditionFalse, "selected-shop")
	n.Change(shop, func() { shop.Labels = nil })
	n.Says(s, kubeovnv1.ConditionNamespacesBound, metav1.ConditionTrue)
}

// Pods that exist before a Subnet binds their namespace keep their addresses in the default subnet: the condition follows their deletion.
func TestPodsInTheDefaultSubnet(t *testing.T) {
	n := start(t)
	n.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "placed-earlier"}})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "placed-earlier", Name: "a", Annotations: map[string]string{kubeovnv1.AnnotationLogicalSwitch.Key(): kubeovnv1.DefaultSubnet},
		},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	n.Create(pod)
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "later"}, Spec: kubeovnv1.SubnetSpec{
		CIDRBlock: "10.51.0.0/24", Namespaces: []string{"placed-earlier", "placed-never"},
	}}
	n.Create(s)
	n.Says(s, kubeovnv1.ConditionPodsPlaced, metav1.ConditionFalse, "1 pods of namespaces placed-earlier have addresses of subnet ovn-default")
	n.Must(n.Client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)))
	n.Says(s, kubeovnv1.ConditionPodsPlaced, metav1.ConditionTrue, "namespaces placed-never do not exist")
	n.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "placed-never"}})
	n.Says(s, kubeovnv1.ConditionPodsPlaced, metav1.ConditionTrue, "no pod of its namespaces")
	n.Change(s, func() { s.Spec.Namespaces = nil })
	n.Eventually(func() string {
		if n.Get(s); apimeta.FindStatusCondition(s.Status.Conditions, kubeovnv1.ConditionPodsPlaced) != nil {
			return "a subnet without namespaces has the condition PodsPlaced"
		}
		return ""
	})
}
