// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/validation"
)

// TestARefusedSubnetIsBuiltOnceTheConflictEnds: the end of each kind of conflict wakes the subnet.
func TestARefusedSubnetIsBuiltOnceTheConflictEnds(t *testing.T) {
	n := start(t)
	n.condition("ovn-default", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.condition("join", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	for _, tt := range []struct {
		name, reason string
		create       func() client.Object
	}{
		{"a subnet with the same addresses", validation.ReasonCIDRConflict, func() client.Object {
			return n.ready("senior", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"})
		}},
		{"a node inside", validation.ReasonCIDRConflict, func() client.Object { return n.node("inside", "10.20.0.9") }},
		{"an API server inside", validation.ReasonCIDRConflict, func() client.Object {
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: metav1.NamespaceDefault, Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
				},
				AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.20.0.9"}}},
			}
			n.Create(slice)
			return slice
		}},
		{"a VPC of the same name", validation.ReasonNameConflict, func() client.Object {
			vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
			n.Create(vpc)
			n.Ready(vpc)
			return vpc
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			other := tt.create()
			s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"}}
			n.Create(s)
			if c := n.condition("shop", kubeovnv1.ConditionValidated, metav1.ConditionFalse); c.Reason != tt.reason {
				t.Errorf("condition says %s: %s", c.Reason, c.Message)
			}
			n.Delete(other)
			n.condition("shop", kubeovnv1.ConditionReady, metav1.ConditionTrue)
			n.Delete(s)
			n.Gone(s)
		})
	}
}

// TestASubnetLosesAVpcThatIsForcedToGo: it says so, and the router goes.
func TestASubnetLosesAVpcThatIsForcedToGo(t *testing.T) {
	n := start(t)
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}}
	n.Create(vpc)
	n.ready("shop", kubeovnv1.SubnetSpec{Vpc: "tenant", CIDRBlock: "10.20.0.0/24"})
	n.Get(vpc)
	n.LetGo(vpc)
	n.Delete(vpc)
	n.Says(n.subnet("shop"), kubeovnv1.ConditionReady, metav1.ConditionFalse, "VPC tenant does not exist")
	n.rows("Logical_Router", "name", "ovn-cluster")
	n.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}})
	n.condition("shop", kubeovnv1.ConditionReady, metav1.ConditionTrue)
}
