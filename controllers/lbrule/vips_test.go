// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package lbrule_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// A Vip of a user can have the name of the Vip that reserves an address of a rule.
func TestAVipOfAReservedNameIsChecked(t *testing.T) {
	w := newWorld(t)
	w.start(a)
	elsewhere := &kubeovnv1.Vip{
		ObjectMeta: metav1.ObjectMeta{Name: "slr-other-10-16-0-60"},
		Spec:       kubeovnv1.VipSpec{Subnet: "web", Type: kubeovnv1.VipTypeSwitchLB, V4IP: "10.16.0.61"},
	}
	untyped := &kubeovnv1.Vip{
		ObjectMeta: metav1.ObjectMeta{Name: "slr-untyped-fd00-0010-0016-0000-0000-0000-0000-0060"},
		Spec:       kubeovnv1.VipSpec{Subnet: "web", V6IP: "fd00:10:16::60"},
	}
	right := &kubeovnv1.Vip{
		ObjectMeta: metav1.ObjectMeta{Name: "slr-right-fd00-0010-0016-0000-0000-0000-0000-0062"},
		Spec:       kubeovnv1.VipSpec{Subnet: "web", Type: kubeovnv1.VipTypeSwitchLB, V6IP: "fd00:10:16:0::62"},
	}
	w.Create(elsewhere, untyped, right)
	rules := map[*kubeovnv1.SwitchLBRule]*kubeovnv1.Vip{
		newRule("other", "10.16.0.60", static("10.16.0.20")):           elsewhere,
		newRule("untyped", "fd00:10:16::60", static("fd00:10:16::14")): untyped,
	}
	for rule, vip := range rules {
		w.Create(rule)
		w.Says(rule, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "Vip "+vip.Name+", which would reserve "+rule.Spec.VIP+" of subnet web")
		w.serves(rule.Name, "")
		w.Delete(vip)
		w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	}
	rule := newRule("right", "fd00:10:16::62", static("fd00:10:16::14"))
	w.Create(rule)
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
}

func TestAddressesOfSubnetsAreReserved(t *testing.T) {
	w := newWorld(t)
	w.DiffersFromFresh("the test frees the allocation of a pod that exists")
	process := w.start(a)
	rule := newRule("web", "10.16.0.100,fd00:10:16::64", static("10.16.0.20"))
	w.Create(rule)
	w.owns("slr-web-10-16-0-100:web slr-web-fd00-0010-0016-0000-0000-0000-0000-0064:web web:web")
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	if holder := process.Allocator.Holder("web", netip.MustParseAddr("10.16.0.100")); holder != "vip/slr-web-10-16-0-100" {
		t.Errorf("the address is %q's", holder)
	}
	sharing := newRule("sharing", "10.16.0.100", static("10.16.0.20"), func(s *kubeovnv1.SwitchLBRuleSpec) { s.Ports[0].Port = 81 })
	w.Create(sharing)
	w.Says(sharing, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	w.owns("slr-web-10-16-0-100:sharing,web slr-web-fd00-0010-0016-0000-0000-0000-0000-0064:web web:sharing,web")

	taken := newRule("taken", "10.16.0.20", static("10.16.0.20"))
	w.Create(taken)
	w.Says(taken, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "10.16.0.20 of subnet web is taken by a.default")
	gateway := newRule("gateway", "10.16.0.1", static("10.16.0.20"))
	w.Create(gateway)
	w.Says(gateway, kubeovnv1.ConditionReady, metav1.ConditionFalse, "10.16.0.1 is taken by gateway")
	user := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: kubeovnv1.VipSpec{Subnet: "web", V4IP: "10.16.0.50"}}
	w.Create(user)
	w.Eventually(func() string {
		if process.Allocator.Holder("web", netip.MustParseAddr("10.16.0.50")) == "" {
			return "the user's Vip has no address"
		}
		return ""
	})
	held := newRule("held", "10.16.0.50", static("10.16.0.20"))
	w.Create(held)
	w.Says(held, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "held by Vip mine, which is not of type switch_lb_vip")

	w.Get(rule)
	w.Change(rule, func() { rule.Spec.VIP = "172.30.0.9" })
	w.serves("web", "172.30.0.9:80=10.16.0.20:8080 | 10.16.0.20=a.default@web | 172.30.0.9:80")
	w.Eventually(func() string {
		if got := w.owned(); !strings.HasPrefix(got, "mine: slr-gateway-10-16-0-1:gateway slr-web-10-16-0-100:sharing web:") {
			return got
		}
		return ""
	})
	process.Allocator.Release("a.default")
	w.Says(taken, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
}

// A pod could get the address of a rule if a change of the Subnet, valid or not, released the reservation.
func TestReservationsStayWhileASubnetChanges(t *testing.T) {
	for name, change := range map[string]func(*kubeovnv1.SubnetSpec){
		"its CIDR": func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock = "10.99.0.0/16" },
		"its VPC":  func(s *kubeovnv1.SubnetSpec) { s.Vpc = "tenant" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.start(a)
			rule := newRule("web", "10.16.0.100", static("10.16.0.20"))
			rule.Annotations = map[string]string{kubeovnv1.AnnotationLogicalSwitch.Key(): "web"}
			w.Create(rule)
			w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
			vip := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "slr-web-10-16-0-100"}}
			w.Get(vip)
			uid := vip.UID
			subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
			w.Get(subnet)
			w.Change(subnet, func() { change(&subnet.Spec) }) // no controller validates it
			for _, port := range []int32{81, 82} {
				w.Get(rule)
				w.Change(rule, func() { rule.Spec.Ports[0].Port = port })
				w.serves("web", fmt.Sprintf("10.16.0.100:%d=10.16.0.20:8080 | 10.16.0.20=a.default@web | 10.16.0.100:%d", port, port))
			}
			if !w.Get(vip) || vip.UID != uid || vip.DeletionTimestamp != nil {
				t.Errorf("the Vip of the rule is %+v", vip.ObjectMeta)
			}
		})
	}
}

// A Vip of the rule itself for another subnet is replaced, and not reported as a conflict.
func TestARuleReplacesItsOwnVip(t *testing.T) {
	w := newWorld(t)
	rule := newRule("web", "10.16.0.100", static("10.16.0.20"))
	w.Create(rule)
	outdated := &kubeovnv1.Vip{
		ObjectMeta: metav1.ObjectMeta{Name: "slr-web-10-16-0-100", OwnerReferences: []metav1.OwnerReference{{
			APIVersion: kubeovnv1.GroupVersion.String(), Kind: "SwitchLBRule", Name: "web", UID: rule.UID,
		}}},
		Spec: kubeovnv1.VipSpec{Subnet: "theirs", Type: kubeovnv1.VipTypeSwitchLB, V4IP: "10.16.0.100"},
	}
	w.Create(outdated)
	w.start(a)
	w.Says(rule, kubeovnv1.ConditionReady, metav1.ConditionTrue, "")
	w.owns("slr-web-10-16-0-100:web web:web")
	if w.Get(outdated); outdated.Spec.Subnet != "web" {
		t.Errorf("the Vip is for subnet %s", outdated.Spec.Subnet)
	}
}
