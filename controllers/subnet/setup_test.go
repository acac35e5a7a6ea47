// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/validation"
)

// TestARefusedSubnetIsBuiltOnceTheConflictEnds: the end of each kind of conflict requeues the subnet.
func TestARefusedSubnetIsBuiltOnceTheConflictEnds(t *testing.T) {
	n := start(t)
	namesake := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "namesake"}}
	n.Create(namesake)
	n.condition("ovn-default", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	n.condition("join", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.22.0.9"}}},
	}
	n.Create(slice)
	for _, tt := range []struct {
		subnet, cidr, reason string
		other                client.Object
	}{
		{"overlap", "10.20.0.0/24", validation.ReasonCIDRConflict, n.ready("senior", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"})},
		{"node", "10.21.0.0/24", validation.ReasonCIDRConflict, n.host("inside", "10.21.0.9")},
		{"api-server", "10.22.0.0/24", validation.ReasonCIDRConflict, slice},
		{"namesake", "10.23.0.0/24", validation.ReasonNameConflict, namesake},
	} {
		t.Log(tt.subnet)
		time.Sleep(time.Until(tt.other.GetCreationTimestamp().Add(time.Second))) // it must be older, and creation times have a resolution of seconds
		n.Create(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: tt.subnet}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: tt.cidr}})
		if c := n.condition(tt.subnet, kubeovnv1.ConditionValidated, metav1.ConditionFalse); c.Reason != tt.reason {
			t.Errorf("condition says %s: %s", c.Reason, c.Message)
		}
		n.Rests("subnet")
		n.Delete(tt.other)
		n.condition(tt.subnet, kubeovnv1.ConditionReady, metav1.ConditionTrue)
	}
}

// TestASubnetLosesAVpcThatIsForcedToGo: the subnet reports the deleted VPC, and the router is deleted.
func TestASubnetLosesAVpcThatIsForcedToGo(t *testing.T) {
	n := start(t)
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}}
	n.Create(vpc)
	n.ready("shop", kubeovnv1.SubnetSpec{Vpc: "tenant", CIDRBlock: "10.20.0.0/24"})
	n.Rests("subnet")
	n.Get(vpc)
	n.LetGo(vpc)
	n.Delete(vpc)
	n.Says(n.subnet("shop"), kubeovnv1.ConditionReady, metav1.ConditionFalse, "VPC tenant does not exist")
	n.rows("Logical_Router", "name", "ovn-cluster")
	n.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}})
	n.condition("shop", kubeovnv1.ConditionReady, metav1.ConditionTrue)
}
