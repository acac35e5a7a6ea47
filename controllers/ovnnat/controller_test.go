// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovnnat_test

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

func TestAFloatingAddressFollowsItsPod(t *testing.T) {
	w := newWorld(t)
	eip := w.eip("web", at("192.0.2.9", "2001:db8:2::9"))
	fip := w.fip("web", kubeovnv1.OvnFipSpec{OvnEip: "web", IPName: "web.shop"})
	w.waits(fip, "IP web.shop, which does not exist")
	ip := w.ip("web", "net", "n2", "10.50.0.5", "fd00:50::5")
	w.Ready(fip)
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5", "dnat_and_snat 2001:db8:2::9 fd00:50::5")
	w.policies() // the default route leads through the external port
	if st := fip.Status; st.Vpc != "blue" || st.V4Eip != "192.0.2.9" || st.V6Eip != "2001:db8:2::9" || st.V4IP != "10.50.0.5" || st.V6IP != "fd00:50::5" ||
		st.MACAddress != "06:00:00:00:00:05" || !st.Ready {
		t.Errorf("the status is %+v", st)
	}
	if l := fip.Labels; l["ovn.kubernetes.io/eip_v4_ip"] != "192.0.2.9" || l["ovn.kubernetes.io/eip_v6_ip"] != "2001-db8-2--9" || fip.Annotations["ovn.kubernetes.io/vpc_eip"] != "web" {
		t.Errorf("labels %v and annotations %v", l, fip.Annotations)
	}
	w.Eventually(func() string {
		if w.Get(eip); eip.Status.NAT != "fip" || eip.Labels["ovn.kubernetes.io/subnet"] != "ext" {
			return fmt.Sprintf("the OvnEip has %q and labels %v", eip.Status.NAT, eip.Labels)
		}
		return ""
	})

	w.Delete(ip)
	w.waits(fip, "IP web.shop, which does not exist")
	w.nat()
	w.ip("web", "net", "n1", "10.50.0.6", "")
	w.Ready(fip)
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.6")
	w.run()
	w.Ready(fip)
	w.RestoresRows("OvnFip//web")

	w.Delete(eip)
	w.Says(eip, kubeovnv1.ConditionReady, metav1.ConditionFalse, "deleted when it is no longer used by OvnFip web")
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.6")
	w.Delete(fip)
	w.Gone(fip, eip)
	w.nat()
}

func TestADistributedFloatingAddressNeedsItsNode(t *testing.T) {
	w := newWorld(t)
	eip := w.eip("web", at("192.0.2.9", ""))
	w.ip("web", "net", "n2", "10.50.0.5", "")
	fip := w.fip("web", kubeovnv1.OvnFipSpec{OvnEip: "web", IPName: "web.shop", Type: "distributed"})
	w.Says(fip, kubeovnv1.ConditionReady, metav1.ConditionTrue, "node n2 of the pod is not ready for ProviderNetwork net1; the node of the router's port translates instead")
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5")
	w.ready("n1", "n2")
	w.Get(eip) // a pod's MAC address is of its tenant's choice, and of its own network only
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5 web.shop " + eip.Status.MACAddress)
	w.ready("n1")
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5")
}

func TestAPodInAnotherVpcTakesNoAddress(t *testing.T) {
	w := newWorld(t)
	w.Create(&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "red"}, Spec: kubeovnv1.VpcSpec{ExtraExternalSubnets: []string{"ext"}}},
		&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "red-net"}, Spec: kubeovnv1.SubnetSpec{Vpc: "red", CIDRBlock: "10.51.0.0/24"}})
	w.eip("front", at("192.0.2.9", ""))
	ip := w.ip("web", "net", "n2", "10.50.0.5", "")
	port := w.dnat("web", kubeovnv1.OvnDnatRuleSpec{OvnEip: "front", IPName: "web.shop", Protocol: "tcp", ExternalPort: "80", InternalPort: "8080"})
	w.Ready(port)
	source := w.snat("all", kubeovnv1.OvnSnatRuleSpec{OvnEip: "front", VpcSubnet: "net"})
	w.Ready(source)
	w.Delete(ip)
	w.waits(port, "IP web.shop, which does not exist")
	ip = w.ip("web", "red-net", "n2", "10.51.0.5", "")
	w.waits(port, "OvnSnatRule all uses OvnEip front for VPC blue")
	w.Rests("ovnsnatrule")
	w.Ready(source)
	w.nat("snat 192.0.2.9 10.50.0.0/24")
	w.balancers()
	w.Delete(ip)
	w.ip("web", "net", "n2", "10.50.0.6", "")
	w.Ready(port, source)
	w.balancers("web tcp map[192.0.2.9:80:10.50.0.6:8080]")
}

func TestARuleWaitsForThePortOfAnotherVpc(t *testing.T) {
	w := newWorld(t)
	red := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "red"}}
	w.Create(red, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "red-net"}, Spec: kubeovnv1.SubnetSpec{Vpc: "red", CIDRBlock: "10.51.0.0/24"}})
	w.eip("web", at("192.0.2.9", ""))
	ip := w.ip("web", "net", "n2", "10.50.0.5", "")
	fip := w.fip("web", kubeovnv1.OvnFipSpec{OvnEip: "web", IPName: "web.shop"})
	w.Ready(fip)
	w.Delete(ip)
	w.waits(fip, "IP web.shop, which does not exist")
	w.ip("web", "red-net", "n2", "10.51.0.5", "")
	w.waits(fip, "VPC red to have a port")
	w.Rests("ovnfip")
	w.Get(red)
	w.Change(red, func() { red.Spec.ExtraExternalSubnets = []string{"ext"} })
	w.Ready(fip)
	w.nat("dnat_and_snat 192.0.2.9 10.51.0.5")
}

func TestNoAddressFollowsAStaticPod(t *testing.T) {
	w := newWorld(t)
	w.eip("web", at("192.0.2.9", ""))
	fip := w.fip("web", kubeovnv1.OvnFipSpec{OvnEip: "web", IPName: "web.shop"})
	w.waits(fip, "IP web.shop, which does not exist")
	ip := w.ip("web", "net", "n2", "10.50.0.5", "")
	w.Ready(fip)
	w.Change(ip, func() { ip.Labels = map[string]string{kubeovnv1.LabelStaticPod: ""} })
	w.waits(fip, "a node alone decides about its static pods")
	w.nat()
}

// TestTheClosestRuleOfSeveralExternalSubnets has rules in two external subnets of one VPC.
func TestTheClosestRuleOfSeveralExternalSubnets(t *testing.T) {
	w := newWorld(t)
	w.eip("one", at("192.0.2.9", ""))
	w.eip("two", at("192.0.3.9", ""), func(s *kubeovnv1.OvnEipSpec) { s.ExternalSubnet = "ext2" })
	w.eip("third", at("192.0.2.10", ""))
	w.ip("web", "net", "n2", "10.50.0.5", "")
	fip := w.fip("web", kubeovnv1.OvnFipSpec{OvnEip: "one", IPName: "web.shop"})
	w.Ready(fip)
	w.policies()
	w.Change(w.blue, func() { w.blue.Spec.ExtraExternalSubnets = []string{"ext", "ext2"} })
	source := w.snat("all", kubeovnv1.OvnSnatRuleSpec{OvnEip: "two", VpcSubnet: "net"})
	w.Ready(source)
	w.policies("29143 ip4.src == 10.50.0.0/24 by 192.0.3.254", "29247 ip4.src == 10.50.0.5 by 192.0.2.254")

	// The same source in both: it leaves by the first one.
	first := w.snat("first", kubeovnv1.OvnSnatRuleSpec{OvnEip: "third", VpcSubnet: "net"})
	w.Ready(first)
	w.policies("29143 ip4.src == 10.50.0.0/24 by 192.0.2.254", "29247 ip4.src == 10.50.0.5 by 192.0.2.254")
	w.Delete(first)
	w.policies("29143 ip4.src == 10.50.0.0/24 by 192.0.3.254", "29247 ip4.src == 10.50.0.5 by 192.0.2.254")

	// Routes of the VPC decide about their networks.
	w.Change(w.blue, func() {
		w.blue.Spec.StaticRoutes = []*kubeovnv1.StaticRoute{{CIDR: "172.16.0.0/16", NextHopIP: "10.50.0.9"}}
	})
	w.policies("29143 ip4.src == 10.50.0.0/24 by 192.0.3.254", "29247 ip4.src == 10.50.0.5 by 192.0.2.254",
		"29249 ip4.src == 10.50.0.0/24 && ip4.dst == 172.16.0.0/16 by ", "29249 ip4.src == 10.50.0.5 && ip4.dst == 172.16.0.0/16 by ")
}

func TestSourcesAndPortsShareAnAddress(t *testing.T) {
	w := newWorld(t)
	eip := w.eip("shared", at("192.0.2.9", "2001:db8:2::9"))
	w.ip("web", "net", "n2", "10.50.0.5", "")
	snat := w.snat("all", kubeovnv1.OvnSnatRuleSpec{OvnEip: "shared", VpcSubnet: "net"})
	dnat := w.dnat("web", kubeovnv1.OvnDnatRuleSpec{OvnEip: "shared", IPName: "web.shop", Protocol: "tcp", ExternalPort: "80", InternalPort: "8080"})
	w.Ready(snat, dnat)
	w.nat("snat 192.0.2.9 10.50.0.0/24", "snat 2001:db8:2::9 fd00:50::/112")
	w.balancers("web tcp map[192.0.2.9:80:10.50.0.5:8080]")
	if st := dnat.Status; st.Vpc != "blue" || st.V4Eip != "192.0.2.9" || st.V4IP != "10.50.0.5" || st.Protocol != "tcp" || st.ExternalPort != "80" || st.InternalPort != "8080" || st.IPName != "web.shop" {
		t.Errorf("the status is %+v", st)
	}
	if snat.Status.V4IPCIDR != "10.50.0.0/24" || snat.Status.V6IPCIDR != "fd00:50::/112" {
		t.Errorf("the status is %+v", snat.Status)
	}
	w.Eventually(func() string {
		if w.Get(eip); eip.Status.NAT != "snat,dnat" {
			return "status.nat is " + eip.Status.NAT
		}
		return ""
	})

	// The last valid spec stays applied.
	w.Change(dnat, func() { dnat.Spec.ExternalPort = "0" })
	w.waits(dnat, "externalPort", "the last valid spec stays applied")
	w.Event(dnat, eventsv1.Event{Type: corev1.EventTypeWarning, Note: "externalPort"})
	w.balancers("web tcp map[192.0.2.9:80:10.50.0.5:8080]")
	w.run()
	w.Rests("ovndnatrule")
	w.balancers("web tcp map[192.0.2.9:80:10.50.0.5:8080]")
	w.Get(dnat)
	w.Change(dnat, func() { dnat.Spec.ExternalPort, dnat.Spec.Protocol = "81", "udp" })
	w.Ready(dnat)
	w.balancers("web udp map[192.0.2.9:81:10.50.0.5:8080]")

	// A subnet that changes.
	w.Delete(snat, dnat)
	w.nat()
	w.balancers()
}

func TestAPortEnqueuesNoOtherPort(t *testing.T) {
	w := newWorld(t)
	w.eip("shared", at("192.0.2.9", ""))
	w.ip("web", "net", "n2", "10.50.0.5", "")
	port := func(number int) *kubeovnv1.OvnDnatRule {
		return w.dnat(fmt.Sprintf("p%d", number), kubeovnv1.OvnDnatRuleSpec{
			OvnEip: "shared", IPName: "web.shop", Protocol: "tcp", ExternalPort: fmt.Sprint(number), InternalPort: "8080",
		})
	}
	const many = 20
	for i := range many {
		w.Ready(port(1000 + i))
	}
	w.Rests("ovndnatrule")
	before := w.Reconciles("ovndnatrule")
	last := port(999)
	w.Ready(last)
	waits := w.dnat("second", kubeovnv1.OvnDnatRuleSpec{OvnEip: "shared", IPName: "web.shop", Protocol: "tcp", ExternalPort: "999", InternalPort: "80"})
	w.waits(waits, "OvnDnatRule p999 has port 999/TCP of OvnEip shared")
	w.Delete(last)
	w.Ready(waits)
	w.Rests("ovndnatrule")
	if passes := w.Reconciles("ovndnatrule") - before; passes >= many {
		t.Errorf("two rules and a deletion caused %d passes", passes)
	}
	source := func(place int) *kubeovnv1.OvnSnatRule {
		return w.snat(fmt.Sprintf("s%d", place), kubeovnv1.OvnSnatRuleSpec{OvnEip: "shared", Vpc: "blue", V4IPCIDR: fmt.Sprintf("10.50.0.%d", place)})
	}
	for i := range many {
		w.Ready(source(10 + i))
	}
	w.Rests("ovnsnatrule")
	before = w.Reconciles("ovnsnatrule")
	one := source(9)
	w.Ready(one)
	w.Delete(one)
	w.Gone(one)
	w.Rests("ovnsnatrule")
	if passes := w.Reconciles("ovnsnatrule") - before; passes >= many {
		t.Errorf("a source and its deletion caused %d passes", passes)
	}
}

func TestTheOlderRuleHasTheAddress(t *testing.T) {
	w := newWorld(t)
	w.eip("one", at("192.0.2.9", ""))
	w.eip("two", at("192.0.2.10", ""))
	w.ip("a", "net", "n2", "10.50.0.5", "")
	w.ip("b", "net", "n2", "10.50.0.6", "")
	first := w.fip("a", kubeovnv1.OvnFipSpec{OvnEip: "one", IPName: "a.shop"})
	w.Ready(first)
	second := w.fip("b", kubeovnv1.OvnFipSpec{OvnEip: "one", IPName: "b.shop"})
	w.Says(second, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "OvnFip a has the addresses of OvnEip one")
	source := w.snat("a", kubeovnv1.OvnSnatRuleSpec{OvnEip: "two", Vpc: "blue", V4IPCIDR: "10.50.0.5"})
	w.waits(source, "10.50.0.5 of VPC blue has an address in external subnet ext by")
	port := w.dnat("p", kubeovnv1.OvnDnatRuleSpec{OvnEip: "one", IPName: "b.shop", Protocol: "tcp", ExternalPort: "80", InternalPort: "80"})
	w.waits(port, "OvnFip a has the addresses")
	router := &kubeovnv1.RouterLBRule{ObjectMeta: metav1.ObjectMeta{Name: "lb"}, Spec: kubeovnv1.RouterLBRuleSpec{OvnEip: "one", VPC: "blue"}}
	router.Spec.Endpoints, router.Spec.Ports = []string{"10.50.0.6"}, []kubeovnv1.LBRulePort{{Name: "http", Port: 81, TargetPort: 80, Protocol: "TCP"}}
	w.Create(router)
	w.waits(router, "OvnFip a has the addresses")
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5")

	w.Delete(first)
	w.Ready(second) // the oldest of the others
	w.Ready(source)
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.6", "snat 192.0.2.10 10.50.0.5")
	w.Delete(second)
	w.Ready(port, router)
	w.balancers("p tcp map[192.0.2.9:80:10.50.0.6:80]", "rlr-lb/tcp tcp map[192.0.2.9:81:10.50.0.6:80]")
	// The load balancers serve the VPC's switches and its router.
	w.Rows("Logical_Router", func(row nbtest.Row) string {
		if row["name"] != "blue" {
			return ""
		}
		return fmt.Sprint(len(row.Strings("load_balancer")))
	}, "2")
}

func TestRulesOfTheDefaultVpcHavePolicies(t *testing.T) {
	w := newWorld(t)
	w.eip("web", at("192.0.2.9", ""))
	w.eip("dns", at("192.0.2.10", "2001:db8:2::10"))
	w.ip("web", "ovn-default", "n2", "10.16.0.5", "fd00:10:16::5")
	fip := w.fip("web", kubeovnv1.OvnFipSpec{OvnEip: "web", IPName: "web.shop"})
	w.waits(fip, "VPC ovn-cluster to have a port in external subnet ext")
	vpc := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "ovn-cluster"}}
	w.Get(vpc)
	w.Change(vpc, func() { vpc.Spec.ExtraExternalSubnets = []string{"ext"} })
	w.Ready(fip)
	dnat := w.dnat("dns", kubeovnv1.OvnDnatRuleSpec{OvnEip: "dns", IPName: "web.shop", Protocol: "udp", ExternalPort: "53", InternalPort: "5353"})
	w.Ready(dnat)
	w.policies("29247 ip4.src == 10.16.0.5 by 192.0.2.254", "29248 ip4.src == 10.16.0.5 && udp.src == 5353 by 192.0.2.254",
		"29248 ip6.src == fd00:10:16::5 && udp.src == 5353 by 2001:db8:2::fe")
	w.Rows("Load_Balancer_Group", func(row nbtest.Row) string { return fmt.Sprint(len(row.Strings("load_balancer"))) }, "0", "0")

	w.Get(vpc)
	w.Change(vpc, func() { vpc.Spec.ExtraExternalSubnets = nil })
	w.waits(fip, "VPC ovn-cluster to have a port")
	w.waits(dnat, "VPC ovn-cluster to have a port")
	w.nat()
	w.policies()
}

func TestWhatCannotBeTranslated(t *testing.T) {
	w := newWorld(t)
	w.eip("four", at("192.0.2.9", ""))
	w.eip("lsp", func(s *kubeovnv1.OvnEipSpec) { s.Type = "lsp" })
	w.ip("six", "net", "n2", "", "fd00:50::5")
	w.ip("physical", "ext2", "n2", "192.0.3.7", "")
	w.Ready(&kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: "blue-ext"}})
	for text, o := range map[string]kubeovnv1.OvnFipSpec{
		"OVN does not translate between IPv4 and IPv6": {OvnEip: "four", IPName: "six.shop"},
		"is of type lsp":                       {OvnEip: "lsp", IPName: "six.shop"},
		"has the addresses of a router itself": {OvnEip: "blue-ext", IPName: "six.shop"},
		"the gateway of subnet ext2 is a router of the physical network": {OvnEip: "four", IPName: "physical.shop"},
		"OvnEip none, which does not exist":                              {OvnEip: "none", IPName: "six.shop"},
		"VPC red, which does not exist":                                  {OvnEip: "four", Vpc: "red", V4IP: "10.0.0.5"},
		"type distributed needs ipName":                                  {OvnEip: "four", Vpc: "blue", V4IP: "10.50.0.5", Type: "distributed"},
	} {
		fip := w.fip("f", o)
		w.waits(fip, text)
		w.Delete(fip)
		w.Gone(fip)
	}
	w.nat()
	// The router's own address serves sources.
	w.snat("all", kubeovnv1.OvnSnatRuleSpec{OvnEip: "blue-ext", VpcSubnet: "net"})
	w.Rows("NAT", func(row nbtest.Row) string { return fmt.Sprint(row["logical_ip"]) }, "10.50.0.0/24", "fd00:50::/112")
}

func TestARuleKeepsItsAddressWhileItsPodIsMissing(t *testing.T) {
	w := newWorld(t)
	w.eip("one", at("192.0.2.9", ""))
	pod := w.ip("a", "net", "n2", "10.50.0.5", "")
	w.ip("b", "net", "n2", "10.50.0.6", "")
	first := w.fip("a", kubeovnv1.OvnFipSpec{OvnEip: "one", IPName: "a.shop"})
	w.Ready(first)
	second := w.fip("b", kubeovnv1.OvnFipSpec{OvnEip: "one", IPName: "b.shop"})
	port := w.dnat("p", kubeovnv1.OvnDnatRuleSpec{OvnEip: "one", IPName: "b.shop", Protocol: "tcp", ExternalPort: "80", InternalPort: "80"})
	router := &kubeovnv1.RouterLBRule{ObjectMeta: metav1.ObjectMeta{Name: "lb"}, Spec: kubeovnv1.RouterLBRuleSpec{OvnEip: "one", VPC: "blue"}}
	router.Spec.Endpoints, router.Spec.Ports = []string{"10.50.0.6"}, []kubeovnv1.LBRulePort{{Name: "http", Port: 81, TargetPort: 80, Protocol: "TCP"}}
	w.Create(router)
	others := func() {
		t.Helper()
		for _, o := range []client.Object{second, port, router} {
			w.Says(o, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "OvnFip a has the addresses of OvnEip one")
		}
	}
	others()
	w.Delete(pod)
	w.waits(first, "IP a.shop, which does not exist")
	w.nat()
	for _, controller := range []string{"ovnfip", "ovndnatrule", "routerlbrule"} {
		w.Rests(controller)
	}
	others()
	w.run()
	w.Rests("ovnfip")
	others()
	w.nat()
	w.ip("a", "net", "n1", "10.50.0.7", "")
	w.Ready(first)
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.7")
	others()
	w.balancers()
}

func TestARuleWaitsForTheRowsOfAnother(t *testing.T) {
	w := newWorld(t)
	w.eip("one", at("192.0.2.9", ""))
	w.eip("other", at("192.0.2.10", ""))
	w.ip("a", "net", "n2", "10.50.0.5", "")
	// The controller withdraws rows without a rule when it starts: it has started.
	w.Ready(w.dnat("ready", kubeovnv1.OvnDnatRuleSpec{OvnEip: "other", IPName: "a.shop", Protocol: "tcp", ExternalPort: "81", InternalPort: "80"}))
	w.Rests("ovndnatrule")
	engine, owner := w.process.Engine, translate.OvnNATOwner(translate.KindOvnDnatRule, "former")
	in := translate.OvnNATInputs{
		Kind: owner.Kind, Name: owner.Name, Vpc: "blue", Eip: "one", Subnet: "ext", Protocol: corev1.ProtocolTCP, ExternalPort: 80, InternalPort: 80, Inside: true,
		Pairs: []translate.NATPair{{External: netip.MustParseAddr("192.0.2.9"), Internal: netip.MustParsePrefix("10.50.0.6/32")}},
	}
	w.Eventually(func() string {
		if err := engine.Apply(w.Context(), owner, translate.OvnNAT(in)); err != nil {
			return err.Error() // the router is not applied yet
		}
		return ""
	})
	fip := w.fip("a", kubeovnv1.OvnFipSpec{OvnEip: "one", IPName: "a.shop"})
	w.waits(fip, "OvnDnatRule former to withdraw its translations of OvnEip one")
	w.nat()
	w.Must(engine.Apply(w.Context(), owner, nil))
	w.Ready(fip)
	w.nat("dnat_and_snat 192.0.2.9 10.50.0.5")
}

func TestADeletedOvnEipHasNoFurtherRules(t *testing.T) {
	w := newWorld(t)
	eip := w.eip("one", at("192.0.2.9", ""))
	w.ip("a", "net", "n2", "10.50.0.5", "")
	dnat := func(name, port string) *kubeovnv1.OvnDnatRule {
		return w.dnat(name, kubeovnv1.OvnDnatRuleSpec{OvnEip: "one", IPName: "a.shop", Protocol: "tcp", ExternalPort: port, InternalPort: "80"})
	}
	first := dnat("first", "80")
	w.Ready(first)
	w.Delete(eip)
	second := dnat("second", "81")
	router := &kubeovnv1.RouterLBRule{ObjectMeta: metav1.ObjectMeta{Name: "lb"}, Spec: kubeovnv1.RouterLBRuleSpec{OvnEip: "one", VPC: "blue"}}
	router.Spec.Endpoints, router.Spec.Ports = []string{"10.50.0.6"}, []kubeovnv1.LBRulePort{{Name: "http", Port: 82, TargetPort: 80, Protocol: "TCP"}}
	w.Create(router)
	for _, o := range []client.Object{second, router} {
		w.Says(o, kubeovnv1.ConditionValidated, metav1.ConditionFalse, "OvnEip one is being deleted: name another one")
	}
	w.run()
	w.Rests("ovndnatrule")
	w.Ready(first)
	w.balancers("first tcp map[192.0.2.9:80:10.50.0.5:80]")
}
