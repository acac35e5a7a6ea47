// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// newTwoExits returns a world whose VPC blue has the external subnets ext and ext2, with OvnEip one in ext, two in ext2, and pod web.
func newTwoExits(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.Change(w.blue, func() { w.blue.Spec.ExtraExternalSubnets = []string{"ext", "ext2"} })
	w.eip("one", at("192.0.2.9", ""))
	w.eip("two", at("192.0.3.9", ""), func(s *kubeovnv1.OvnEipSpec) { s.ExternalSubnet = "ext2" })
	w.ip("web", "net", "n2", "10.50.0.5", "")
	return w
}

func TestAPortHasAnswersByOneExternalSubnet(t *testing.T) {
	w := newTwoExits(t)
	dnat := func(name, eip, internal string) *kubeovnv1.OvnDnatRule {
		return w.dnat(name, kubeovnv1.OvnDnatRuleSpec{OvnEip: eip, IPName: "web.shop", Protocol: "tcp", ExternalPort: internal, InternalPort: internal})
	}
	const byExt, byExt2 = "29248 ip4.src == 10.50.0.5 && tcp.src == 8080 by 192.0.2.254", "29248 ip4.src == 10.50.0.5 && tcp.src == 8080 by 192.0.3.254"
	a := dnat("a", "one", "8080")
	w.Ready(a)
	b := dnat("b", "two", "8080")
	w.Says(b, kubeovnv1.ConditionReady, metav1.ConditionFalse, "AddressesInUse", "OvnDnatRule a translates this port, too: choose another internalPort")
	w.Says(b, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "by external subnet ext only")
	w.policies(byExt)
	w.Ready(dnat("another", "two", "8081"), dnat("same", "one", "8082"))
	w.policies(byExt, "29248 ip4.src == 10.50.0.5 && tcp.src == 8081 by 192.0.3.254", "29248 ip4.src == 10.50.0.5 && tcp.src == 8082 by 192.0.2.254")
	for _, name := range []string{"another", "same"} {
		w.Delete(&kubeovnv1.OvnDnatRule{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}

	w.Get(a)
	w.Change(a, func() { a.Spec.InternalPort = "8083" })
	w.Ready(a, b)
	w.Delete(b)
	w.Gone(b)
	w.Change(a, func() { a.Spec.InternalPort = "8080" })
	w.Ready(a)
	b = dnat("b", "two", "8080")
	w.waits(b, "OvnDnatRule a translates this port")
	w.run()
	w.Rests("ovndnatrule")
	w.policies(byExt)
	w.Delete(a)
	w.Ready(b)
	w.policies(byExt2)

	// The rule in the first subnet would have the answers of the older one.
	c := w.dnat("c", kubeovnv1.OvnDnatRuleSpec{OvnEip: "one", Vpc: "blue", V4IP: "10.50.0.5", Protocol: "tcp", ExternalPort: "80", InternalPort: "8080"})
	w.waits(c, "by external subnet ext only", "OvnDnatRule b translates this port", "behind the router of subnet ext2")
	w.policies(byExt2)
	// With a route, both have clients.
	w.Get(w.blue)
	w.Change(w.blue, func() {
		w.blue.Spec.StaticRoutes = []*kubeovnv1.StaticRoute{{CIDR: "172.16.0.0/16", NextHopIP: "192.0.3.254"}}
	})
	w.Ready(b, c)
	const routed = "29249 ip4.src == 10.50.0.5 && tcp.src == 8080 && ip4.dst == 172.16.0.0/16 by "
	w.policies(byExt, routed)
	w.Get(w.blue)
	w.Change(w.blue, func() { w.blue.Spec.StaticRoutes = nil })
	w.waits(c, "OvnDnatRule b translates this port")
	w.Ready(b)
	w.policies(byExt2)
	w.Delete(b)
	w.Ready(c)
	w.policies(byExt)
}

func TestAFloatingAddressHasAnswersByOneExternalSubnet(t *testing.T) {
	w := newTwoExits(t)
	a := w.fip("a", kubeovnv1.OvnFipSpec{OvnEip: "two", IPName: "web.shop"})
	w.Ready(a)
	b := w.snat("b", kubeovnv1.OvnSnatRuleSpec{OvnEip: "one", Vpc: "blue", V4IPCIDR: "10.50.0.5"})
	w.waits(b, "packets from 10.50.0.5 leave VPC blue by external subnet ext only, and", "OvnFip a translates this address")
	w.nat("dnat_and_snat 192.0.3.9 10.50.0.5")
	w.policies("29247 ip4.src == 10.50.0.5 by 192.0.3.254")
	w.Delete(a)
	w.Ready(b)
	c := w.fip("c", kubeovnv1.OvnFipSpec{OvnEip: "two", IPName: "web.shop"})
	w.waits(c, "OvnSnatRule b translates this address")
	w.Get(w.blue)
	w.Change(w.blue, func() {
		w.blue.Spec.PolicyRoutes = []*kubeovnv1.PolicyRoute{{Priority: 30500, Match: "ip4.dst == 172.16.0.0/16", Action: kubeovnv1.PolicyRouteReroute, NextHopIP: "192.0.3.254"}}
	})
	w.Ready(c)
	w.nat("dnat_and_snat 192.0.3.9 10.50.0.5", "snat 192.0.2.9 10.50.0.5")
	w.policies("29247 ip4.src == 10.50.0.5 by 192.0.2.254")
}
