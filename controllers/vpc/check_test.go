// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/validation"
)

func TestCollidingNamesAreReported(t *testing.T) {
	n := start(t)
	first := n.newSubnet("c", "a-b", "10.0.0.0/24")
	n.Ready(n.newVpc("a-b", nil), first)
	n.later(first)
	second := n.newSubnet("b-c", "a", "10.0.0.0/24")
	n.Ready(n.newVpc("a", nil), second)
	ports := func(row nbtest.Row) string {
		if name, _, hashed := strings.Cut(row["name"].(string), "_"); name == "a-b-c" {
			return fmt.Sprint(hashed, " ", row["external_ids"].(map[string]string)["kiln-owner"])
		}
		return ""
	}
	n.Rows("Logical_Router_Port", ports, "false Subnet//c", "true Subnet//b-c")
	n.Delete(first)
	n.Rows("Logical_Router_Port", ports, "false Subnet//b-c")
	n.Ready(second)

	n.later(second)
	namesake := n.newVpc("b-c", nil)
	n.Says(namesake, kubeovnv1.ConditionValidated, metav1.ConditionFalse, validation.ReasonNameConflict, "Subnet named b-c")
	n.Says(namesake, kubeovnv1.ConditionReady, metav1.ConditionFalse)
	n.Delete(second)
	n.Ready(namesake)
	n.Says(n.newSubnet("a-b", "b-c", "10.0.0.0/24"), kubeovnv1.ConditionValidated, metav1.ConditionFalse, validation.ReasonNameConflict, "Vpc named a-b")
}

func TestNamespacesAreOfOneVpc(t *testing.T) {
	n := start(t)
	owner := n.newVpc("owner", func(s *kubeovnv1.VpcSpec) { s.Namespaces = []string{"shop", "lab"} })
	n.Ready(owner)
	n.later(owner)
	conflicting := n.newVpc("a-conflict", func(s *kubeovnv1.VpcSpec) { s.Namespaces = []string{"shop"} })
	younger, older := conflicting, owner
	n.Says(younger, kubeovnv1.ConditionValidated, metav1.ConditionFalse, validation.ReasonNamespaceTaken, "shop is of VPC "+older.Name)
	n.Says(older, kubeovnv1.ConditionValidated, metav1.ConditionTrue)
	n.Change(older, func() { older.Spec.Namespaces = nil })
	n.Ready(younger)
	n.Change(older, func() { older.Spec.Namespaces = []string{"lab2"} })

	net := n.newSubnet("net", younger.Name, "10.0.0.0/24", "shop", "elsewhere")
	n.Says(net, kubeovnv1.ConditionNamespacesBound, metav1.ConditionFalse, "does not serve elsewhere", "VPC "+younger.Name)
	n.Ready(net)
	n.Change(younger, func() { younger.Spec.Namespaces = []string{"shop", "elsewhere"} })
	n.Says(net, kubeovnv1.ConditionNamespacesBound, metav1.ConditionTrue)
	n.Change(younger, func() { younger.Spec.DefaultSubnet = "none" })
	n.Says(younger, kubeovnv1.ConditionReady, metav1.ConditionFalse, "defaultSubnet none does not exist")
	foreign := n.newSubnet("none", older.Name, "10.0.0.0/24")
	n.Says(younger, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "defaultSubnet none is of VPC "+older.Name)
	n.Delete(foreign)
	n.Change(younger, func() { younger.Spec.DefaultSubnet = "net" })
	n.Ready(younger)
	if younger.Status.DefaultLogicalSwitch != "net" || !slices.Equal(younger.Status.Subnets, []string{"net"}) || younger.Status.Router != younger.Name {
		t.Errorf("status %+v", younger.Status)
	}
}
