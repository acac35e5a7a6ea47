// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// TestASubnetThatIsNotBuiltTakesNoAddresses: its CIDRs are not checked against other networks, so that no component may use them.
func TestASubnetThatIsNotBuiltTakesNoAddresses(t *testing.T) {
	n := start(t)
	older := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "a-attachment"}, Spec: kubeovnv1.SubnetSpec{
		CIDRBlock: "10.20.0.0/16", Provider: "net.default.ovn",
	}}
	overlapping := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "b-overlapping"}, Spec: kubeovnv1.SubnetSpec{
		CIDRBlock: "10.16.0.0/24", Provider: "net.default.ovn",
	}}
	n.Create(older, overlapping)
	for _, s := range []*kubeovnv1.Subnet{older, overlapping} {
		n.Says(s, kubeovnv1.ConditionValidated, metav1.ConditionFalse, kubeovnv1.ReasonFieldsIgnored, "this version builds no subnet with provider")
		n.Says(s, kubeovnv1.ConditionReady, metav1.ConditionFalse, kubeovnv1.ReasonFieldsIgnored)
		if n.Get(s); s.Status.ValidatedSpec != nil {
			t.Errorf("subnet %s was never checked against other networks, and has the valid spec %+v", s.Name, s.Status.ValidatedSpec)
		}
	}
	n.ready("built", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24"})
	n.rows("Logical_Switch", "name", "built", "join", "ovn-default")
}

// TestAChangeToASubnetThatIsNotBuiltKeepsTheLastSpec: nodes, ports and rows stay with the last valid spec.
func TestAChangeToASubnetThatIsNotBuiltKeepsTheLastSpec(t *testing.T) {
	n := start(t)
	s := n.ready("s", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24,fd00:10:20::/64"})
	n.Get(s)
	n.Change(s, func() {
		s.Spec.Provider, s.Spec.CIDRBlock, s.Spec.Gateway, s.Spec.ExcludeIPs = "net.default.ovn", "10.16.0.0/24", "10.16.0.1", nil
	})
	n.Says(s, kubeovnv1.ConditionReady, metav1.ConditionFalse, kubeovnv1.ReasonFieldsIgnored, "the last valid spec stays applied")
	if n.Get(s); s.Status.ValidatedSpec.CIDRBlock != "10.20.0.0/24,fd00:10:20::/64" {
		t.Errorf("the last valid spec is %+v", s.Status.ValidatedSpec)
	}
	n.loseDatabase()
	n.rows("Logical_Router_Port", "networks", "10.16.0.1/16 fd00:10:16::1/64", "10.20.0.1/24 fd00:10:20::1/64", "100.64.0.1/16 fd00:100:64::1/112")
}
