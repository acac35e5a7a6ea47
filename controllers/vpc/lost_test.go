// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package vpc_test

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/validation"
)

// loseDatabase restarts the controllers with an empty northbound database.
func (n *tenants) loseDatabase() {
	n.Helper()
	n.process.Stop()
	n.Database = nbtest.Start(n.T)
	n.run()
}

// TestTheLastValidSpecOfAVpcSurvivesALostDatabase: an invalid change of one entry opens nothing and cuts nothing off.
func TestTheLastValidSpecOfAVpcSurvivesALostDatabase(t *testing.T) {
	n := start(t)
	v := n.newVpc("tenant", func(s *kubeovnv1.VpcSpec) {
		s.PolicyRoutes = []*kubeovnv1.PolicyRoute{{Priority: 11, Match: "ip4.dst == 192.0.2.0/24", Action: "drop"}}
		s.StaticRoutes = []*kubeovnv1.StaticRoute{{CIDR: "10.9.0.0/16", NextHopIP: "10.0.0.5"}}
	})
	other := n.newVpc("other", peering("tenant", "169.254.0.2/30"))
	n.Ready(n.newSubnet("net", "tenant", "10.0.0.0/24,fd00:10::/64"))
	n.Ready(v)
	n.Change(v, func() { peering("other", "169.254.0.1/30")(&v.Spec) })
	n.Ready(v, other)
	policies := func(row nbtest.Row) string {
		if !ofVpc(row, "tenant") {
			return ""
		}
		return fmt.Sprint(row["match"], " ", row["action"])
	}
	rows := func() {
		t.Helper()
		n.Rows("Logical_Router_Policy", policies, "ip4.dst == 192.0.2.0/24 drop")
		n.Rows("Logical_Router_Static_Route", staticRoutes, "dst-ip 10.9.0.0/16 by 10.0.0.5")
		n.Rows("Logical_Router_Port", links, "other-tenant with tenant-other [169.254.0.2/30]", "tenant-other with other-tenant [169.254.0.1/30]")
	}
	rows()
	n.Change(v, func() {
		v.Spec.PolicyRoutes[0].Match, v.Spec.StaticRoutes = "ip4.dst = 192.0.2.0/24", nil
		v.Spec.VpcPeerings[0].LocalConnectIP = "10.0.0.1/30" // in the subnet
	})
	n.Says(v, kubeovnv1.ConditionReady, metav1.ConditionFalse, validation.ReasonRouteInvalid, "write == to compare", "the last valid spec stays applied")
	rows()
	n.loseDatabase()
	n.Says(v, kubeovnv1.ConditionReady, metav1.ConditionFalse, "the last valid spec stays applied")
	rows()
	n.Change(v, func() { v.Spec.PolicyRoutes[0].Match, v.Spec.VpcPeerings = "ip4.dst == 198.51.100.0/24", nil })
	n.Ready(v)
	n.Rows("Logical_Router_Policy", policies, "ip4.dst == 198.51.100.0/24 drop")
	n.Rows("Logical_Router_Static_Route", staticRoutes)
}

// TestTheValidEntriesOfANewVpcApply: a Vpc that was never valid has no last valid spec.
func TestTheValidEntriesOfANewVpcApply(t *testing.T) {
	n := start(t)
	v := n.newVpc("tenant", func(s *kubeovnv1.VpcSpec) {
		s.PolicyRoutes = []*kubeovnv1.PolicyRoute{
			{Priority: 11, Match: "ip4.dst == 192.0.2.0/24", Action: "drop"}, {Priority: 10, Match: "ip4.dst = 192.0.2.0/24", Action: "drop"},
		}
	})
	n.Says(v, kubeovnv1.ConditionReady, metav1.ConditionFalse, "write == to compare; the valid entries are applied")
	n.Rows("Logical_Router_Policy", func(row nbtest.Row) string {
		if !ofVpc(row, "tenant") {
			return ""
		}
		return fmt.Sprint(row["match"])
	}, "ip4.dst == 192.0.2.0/24")
}

// TestPodsOfAnInvalidSubnetSurviveALostDatabase: pods use the last valid spec, which also protects them from a change of their VPC.
func TestPodsOfAnInvalidSubnetSurviveALostDatabase(t *testing.T) {
	n := &tenants{World: controllertest.New(t)} // with nodes, to whose sets the pods of the default VPC belong
	n.run()
	n.Ready(n.newVpc("blue", nil))
	s := n.newSubnet("net", "", "10.20.0.0/24,fd00:10:20::/64")
	n.Ready(s)
	running := n.newPod("running", "net")

	n.Change(s, func() { s.Spec.Vpc = "blue" })
	n.Says(s, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "vpc cannot change from ovn-cluster to blue while addresses are in use")
	fresh := n.newPod("fresh", "net")
	if vpc := fresh.Annotations[kubeovnv1.AnnotationLogicalRouter.Key()]; vpc != kubeovnv1.DefaultVpc {
		t.Errorf("the new pod is in VPC %s", vpc)
	}
	n.loseDatabase()
	n.Rows("Logical_Switch_Port", func(row nbtest.Row) string {
		if name := fmt.Sprint(row["name"]); slices.Contains([]string{"running.default", "fresh.default"}, name) {
			return name
		}
		return ""
	}, "fresh.default", "running.default")
	n.Says(s, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "vpc cannot change from ovn-cluster to blue while addresses are in use")
	n.Rows("Logical_Router_Port", func(row nbtest.Row) string { return fmt.Sprint(row["name"]) },
		"ovn-cluster-join", "ovn-cluster-net", "ovn-cluster-ovn-default")
	n.Delete(running, fresh)
	n.Ready(s) // the change applies when no address is in use
	n.Rows("Logical_Router_Port", func(row nbtest.Row) string { return fmt.Sprint(row["name"]) },
		"blue-net", "ovn-cluster-join", "ovn-cluster-ovn-default")
}
