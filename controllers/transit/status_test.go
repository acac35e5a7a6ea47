// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package transit_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/transit"
)

func TestFullJoinSubnetIsReported(t *testing.T) {
	c := start(t, "100.64.0.0/29", "n1") // five addresses besides the gateway
	var vpcs []*kubeovnv1.Vpc
	for i := range 4 {
		vpcs = append(vpcs, c.vpc(fmt.Sprint("v", i), "", false, nil))
		c.says(vpcs[i], metav1.ConditionTrue)
	}
	late := c.vpc("late", "", false, nil)
	c.says(late, metav1.ConditionFalse, transit.ReasonNoAddress, "subnet join has no free address", "clusterAccess")
	c.Delete(vpcs[1])
	c.says(late, metav1.ConditionTrue, transit.ReasonCarried)
}

func TestLinkAddressConflictsAreReported(t *testing.T) {
	c := start(t, dualJoin, "n1")
	v := c.vpc("blue", "", true, func(s *kubeovnv1.VpcSpec) {
		s.VpcPeerings = []*kubeovnv1.VpcPeering{{RemoteVpc: "red", LocalConnectIP: "169.254.0.1/16"}}
	})
	c.says(v, metav1.ConditionFalse, transit.ReasonLinkAddress, "the link with VPC red (169.254.0.0/16)", "169.254.254.1")
	c.routers()
	c.Change(v, func() { v.Spec.VpcPeerings[0].LocalConnectIP = "169.254.0.1/30" })
	c.says(v, metav1.ConditionTrue)
}
