// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func TestTheDefaultNetworkAppears(t *testing.T) {
	n := start(t)
	for _, name := range []string{"join", "ovn-default"} {
		n.condition(name, kubeovnv1.ConditionReady, metav1.ConditionTrue)
	}
	n.rows("Logical_Router", "name", "ovn-cluster")
	n.rows("Logical_Switch", "name", "join", "ovn-default")
	n.rows("Logical_Router_Port", "name", "ovn-cluster-join", "ovn-cluster-ovn-default")
	n.rows("Logical_Router_Port", "networks", "10.16.0.1/16 fd00:10:16::1/64", "100.64.0.1/16 fd00:100:64::1/112")
	n.rows("Logical_Switch_Port", "name", "join-ovn-cluster", "ovn-default-ovn-cluster")
	n.rows("Logical_Router_Policy", "match",
		"ip4.dst == 10.16.0.0/16", "ip4.dst == 100.64.0.0/16", "ip6.dst == fd00:100:64::/112", "ip6.dst == fd00:10:16::/64")
	n.rows("Logical_Router_Static_Route", "nexthop", "100.64.0.1", "fd00:100:64::1")

	spec := n.subnet("ovn-default").Spec
	want := kubeovnv1.SubnetSpec{
		Default: true, Vpc: "ovn-cluster", Protocol: "Dual", CIDRBlock: "10.16.0.0/16,fd00:10:16::/64", Gateway: "10.16.0.1,fd00:10:16::1",
		ExcludeIPs: []string{"10.16.0.1", "fd00:10:16::1"}, Provider: "ovn", GatewayType: "distributed", NATOutgoing: true,
	}
	if fmt.Sprintf("%+v", spec) != fmt.Sprintf("%+v", want) {
		t.Errorf("spec of ovn-default:\n%+v, want\n%+v", spec, want)
	}
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "ovn-cluster"}}
	n.Eventually(func() string {
		n.Get(vpc)
		got := vpc.Status
		if !got.Standby || !got.Default || got.Router != "ovn-cluster" || got.DefaultLogicalSwitch != "ovn-default" ||
			strings.Join(got.Subnets, ",") != "join,ovn-default" {
			return fmt.Sprintf("status of the VPC: %+v", got)
		}
		return ""
	})
}

func TestWhatUsersSetStays(t *testing.T) {
	n := start(t)
	n.condition("ovn-default", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	s := n.subnet("ovn-default")
	n.Change(s, func() {
		s.Spec.NATOutgoing = false
		s.Spec.ExcludeIPs = []string{"10.16.0.10..10.16.0.20"}
	})
	n.run()
	n.condition("ovn-default", kubeovnv1.ConditionReady, metav1.ConditionTrue)
	if got := n.subnet("ovn-default").Spec; got.NATOutgoing || strings.Join(got.ExcludeIPs, " ") != "10.16.0.10..10.16.0.20" {
		t.Errorf("the user's spec became %+v", got)
	}
}
