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
	if spec.EnableLb == nil || !*spec.EnableLb {
		t.Errorf("enableLb of ovn-default is %v", spec.EnableLb)
	}
	spec.EnableLb = nil
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

// Other programs read these defaults and select by the label, so they are those of Kube-OVN.
func TestDefaultsAreWritten(t *testing.T) {
	n := start(t)
	n.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}})
	for name, vpc := range map[string]string{"plain": "", "of-tenant": "tenant"} {
		n.Create(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{Vpc: vpc, CIDRBlock: "10.50.0.0/24"}})
	}
	for name, want := range map[string]string{
		"join": "vpc ovn-cluster, gatewayType , enableLb unset", "ovn-default": "vpc ovn-cluster, gatewayType distributed, enableLb true",
		"plain": "vpc ovn-cluster, gatewayType distributed, enableLb true", "of-tenant": "vpc tenant, gatewayType , enableLb true",
	} {
		n.Eventually(func() string {
			s := n.subnet(name)
			lb := "unset"
			if s.Spec.EnableLb != nil {
				lb = fmt.Sprint(*s.Spec.EnableLb)
			}
			if got := fmt.Sprintf("vpc %s, gatewayType %s, enableLb %s", s.Labels["ovn.kubernetes.io/vpc"], s.Spec.GatewayType, lb); got != want {
				return fmt.Sprintf("subnet %s has %s, want %s", name, got, want)
			}
			return ""
		})
	}
	s := n.subnet("plain")
	n.Change(s, func() { s.Labels = map[string]string{"mine": ""} })
	n.Eventually(func() string {
		if s := n.subnet("plain"); len(s.Labels) != 2 {
			return fmt.Sprintf("labels: %v", s.Labels)
		}
		return ""
	})
}
