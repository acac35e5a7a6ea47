// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// outside is a VPC `blue` with the pods a and b, whose router has ports in the external subnets ext and ext2.
type outside struct {
	*engine

	server *nbtest.Server
	northd *nbtest.Northd
	inputs translate.ExternalInputs
}

var externalNetworks = map[string][2]string{"ext": {"192.0.2.", "2001:db8:2::"}, "ext2": {"198.51.100.", "2001:db8:3::"}}

func externalAddress(subnet string, family, n int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprint(externalNetworks[subnet][family], n))
}

func newOutside(t *testing.T, subnets ...string) outside {
	t.Helper()
	server := nbtest.Start(t)
	o := outside{server: server, northd: server.Northd(), engine: lead(t, server.Endpoint())}
	applyNetwork(o.engine)
	o.apply(translate.ProtectionOwner("blue"), translate.Protection("blue", v1alpha1.ControlPlaneProtection{}))
	o.apply(vpc("blue"), translate.Vpc(translate.VpcInputs{Name: "blue"}))
	o.apply(subnet("net"), translate.Subnet(translate.SubnetInputs{
		Name: "net", Vpc: "blue", Services: true,
		CIDRs:    []netip.Prefix{netip.MustParsePrefix("10.16.0.0/24"), netip.MustParsePrefix("fd00:16::/112")},
		Gateways: []netip.Addr{netip.MustParseAddr("10.16.0.1"), netip.MustParseAddr("fd00:16::1")},
	}))
	for i, name := range []string{"a", "b"} {
		o.apply(pod(name), translate.Pod(translate.PodInputs{
			Namespace: "ns", Name: name, Subnet: "net", Vpc: "blue", Node: "n2", MAC: net.HardwareAddr{2, 3, 0, 0, 0, byte(2 + i)},
			Addresses: []netip.Addr{insideAddress(name, 0), insideAddress(name, 1)},
		}))
	}
	in := translate.ExternalInputs{Vpc: "blue", Default: []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6}}
	for i, name := range subnets {
		cidrs := []netip.Prefix{netip.PrefixFrom(externalAddress(name, 0, 0), 24), netip.PrefixFrom(externalAddress(name, 1, 0), 64)}
		gateways := []netip.Addr{externalAddress(name, 0, 254), externalAddress(name, 1, 254)}
		o.apply(subnet(name), translate.Subnet(translate.SubnetInputs{
			Name: name, Vpc: kubeovnv1.DefaultVpc, Services: true, Localnet: &translate.Localnet{Network: "net1", Tag: 30 + i}, CIDRs: cidrs, Gateways: gateways,
		}))
		in.Ports = append(in.Ports, translate.ExternalPort{
			Subnet: name, CIDRs: cidrs, Gateways: gateways, Addresses: []netip.Addr{externalAddress(name, 0, 1), externalAddress(name, 1, 1)},
			MAC: net.HardwareAddr{2, 4, 0, 0, 0, byte(i)}, Chassis: []string{"n1", "n2"},
		})
	}
	o.inputs = in
	o.apply(translate.ExternalOwner("blue"), translate.External(in))
	return o
}

func insideAddress(pod string, family int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf([]string{"10.16.0.%d", "fd00:16::%x"}[family], 2+pod[0]-'a'))
}

// rule applies a rule for the addresses number n of a subnet.
func (o outside) rule(in translate.OvnNATInputs, subnet string, n int, inside ...netip.Prefix) {
	o.t.Helper()
	in.Vpc, in.Subnet = "blue", subnet
	for _, internal := range inside {
		family := 0
		if internal.Addr().Is6() {
			family = 1
		}
		in.Pairs = append(in.Pairs, translate.NATPair{External: externalAddress(subnet, family, n), Internal: internal})
	}
	o.apply(translate.OvnNATOwner(in.Kind, in.Name), translate.OvnNAT(in))
}

// flows returns the logical flows of a stage in the form `match => actions`.
func (o outside) flows(stage string) []string {
	var flows []string
	for _, row := range o.northd.Southbound.Rows("Logical_Flow") {
		if row["external_ids"].(map[string]string)["stage-name"] == stage {
			flows = append(flows, fmt.Sprint(row["match"], " => ", row["actions"]))
		}
	}
	return flows
}

func podAddresses(pod string) []netip.Prefix {
	return ipfamily.Hosts([]netip.Addr{insideAddress(pod, 0), insideAddress(pod, 1)})
}

// What ovn-northd makes of the rows, on a router with two external ports. Each case has parts of a flow's match and actions. Kube-OVN needs a patch of northd
// for load balancers on such a router; 25.03 does not.
func TestNorthdTranslatesExternalAddresses(t *testing.T) {
	o := newOutside(t, "ext", "ext2")
	o.rule(translate.OvnNATInputs{Kind: translate.KindOvnSnatRule, Name: "s"}, "ext", 10, netip.MustParsePrefix("10.16.0.0/24"), netip.MustParsePrefix("fd00:16::/112"))
	o.rule(translate.OvnNATInputs{Kind: translate.KindOvnFip, Name: "a"}, "ext", 11, podAddresses("a")...)
	o.rule(translate.OvnNATInputs{Kind: translate.KindOvnFip, Name: "b", Port: "b.ns", MAC: net.HardwareAddr{2, 3, 0, 0, 0, 3}}, "ext2", 12, podAddresses("b")...)
	for _, s := range []string{"ext", "ext2"} {
		forward := translate.OvnNATInputs{Kind: translate.KindOvnDnatRule, Name: "d-" + s, Protocol: corev1.ProtocolTCP, ExternalPort: 80, InternalPort: 8080, Inside: true}
		o.rule(forward, s, 13, podAddresses("a")...)
	}
	o.northd.Settled()
	for _, s := range []string{"ext", "ext2"} { // the default route leads through the first one
		router := "xxreg0 == " + externalAddress(s, 1, 254).String()
		if !slices.ContainsFunc(o.flows("lr_in_arp_request"), func(flow string) bool {
			return strings.Contains(flow, router) && strings.Contains(flow, "33:33:ff:00:02:54")
		}) {
			t.Errorf("the physical router of %s is asked by no neighbour solicitation of its own", s)
		}
	}
	const onExt, onExt2, onPod = `is_chassis_resident("cr-blue-ext")`, `is_chassis_resident("cr-blue-ext2")`, `is_chassis_resident("b.ns")`
	for family, ip := range []string{"ip4", "ip6"} {
		at := func(subnet string, n int) string { return externalAddress(subnet, family, n).String() }
		a, b := insideAddress("a", family).String(), insideAddress("b", family).String()
		backend := netip.AddrPortFrom(insideAddress("a", family), 8080).String()
		for _, want := range []struct {
			what, stage string
			parts       []string
		}{
			{"SNAT of a subnet", "lr_out_snat", []string{ip + ".src == " + []string{"10.16.0.0/24", "fd00:16::/112"}[family], onExt, "ct_snat(" + at("ext", 10) + ")"}},
			{"a centralized FIP, from the pod", "lr_out_snat", []string{ip + ".src == " + a + " ", onExt, "ct_snat(" + at("ext", 11) + ")"}},
			{"a centralized FIP, to the pod", "lr_in_dnat", []string{ip + ".dst == " + at("ext", 11) + " ", `inport == "blue-ext"`, onExt, "ct_dnat(" + a + ")"}},
			{"a distributed FIP, from the pod", "lr_out_snat", []string{ip + ".src == " + b + " ", onPod, "eth.src = 02:03:00:00:00:03", "ct_snat(" + at("ext2", 12) + ")"}},
			{"a distributed FIP, to the pod", "lr_in_dnat", []string{ip + ".dst == " + at("ext2", 12) + " ", `inport == "blue-ext2"`, "ct_dnat(" + b + ")"}},
			{"a port", "lr_in_dnat", []string{ip + ".dst == " + at("ext", 13) + " ", "tcp.dst == 80", onExt, "backends=" + backend}},
			{"a port of the second external subnet", "lr_in_dnat", []string{ip + ".dst == " + at("ext2", 13) + " ", "tcp.dst == 80", onExt2, "backends=" + backend}},
			{"answers of a port", "lr_out_undnat", []string{ip + ".src == " + a + " && tcp.src == 8080", `outport == "blue-ext"`, onExt, "ct_dnat"}},
			{"answers of a port of the second external subnet", "lr_out_undnat", []string{ip + ".src == " + a + " && tcp.src == 8080", `outport == "blue-ext2"`, onExt2, "ct_dnat"}},
			{"a port for pods of the VPC", "ls_in_lb", []string{ip + ".dst == " + at("ext", 13) + " ", "tcp.dst == 80", "backends=" + backend}},
			{"from a pod to the centralized FIP of another one", "lr_out_egr_loop", []string{ip + ".dst == " + at("ext", 11) + " ", onExt, "flags.loopback = 1"}},
			{"from a pod to the distributed FIP of another one", "lr_out_egr_loop", []string{ip + ".dst == " + at("ext2", 12) + " ", onPod, "flags.loopback = 1"}},
		} {
			flows := o.flows(want.stage)
			if !slices.ContainsFunc(flows, func(flow string) bool {
				return !slices.ContainsFunc(want.parts, func(part string) bool { return !strings.Contains(flow, part) })
			}) {
				t.Errorf("%s: no flow of %s has %q:\n%s", want.what, want.stage, want.parts, strings.Join(flows, "\n"))
			}
		}
	}
	// One chassis answers for an address: the one of the router's port, or of the pod.
	for n, on := range map[string]string{externalAddress("ext", 0, 11).String(): onExt, externalAddress("ext2", 0, 12).String(): onPod} {
		var answers []string
		for _, flow := range o.flows("lr_in_ip_input") {
			if strings.Contains(flow, "inport ==") && strings.Contains(flow, "arp.tpa == "+n+" ") && strings.Contains(flow, "arp.op = 2") {
				answers = append(answers, flow)
			}
		}
		if len(answers) != 1 || !strings.Contains(answers[0], on) {
			t.Errorf("ARP answers for %s, want one on %s:\n%s", n, on, strings.Join(answers, "\n"))
		}
	}
}

// The rows of one rule go, and nothing of it is left in the flows.
func TestNorthdForgetsExternalAddresses(t *testing.T) {
	o := newOutside(t, "ext")
	o.rule(translate.OvnNATInputs{Kind: translate.KindOvnFip, Name: "a"}, "ext", 11, podAddresses("a")...)
	o.rule(translate.OvnNATInputs{Kind: translate.KindOvnDnatRule, Name: "d", Protocol: corev1.ProtocolUDP, ExternalPort: 53, InternalPort: 53}, "ext", 13, podAddresses("b")...)
	o.northd.Await("the address", func(*nbtest.Server) bool {
		return len(o.mentions("192.0.2.11")) > 0 && len(o.mentions("192.0.2.13")) > 0
	})
	o.apply(translate.OvnNATOwner(translate.KindOvnFip, "a"), nil)
	o.apply(translate.OvnNATOwner(translate.KindOvnDnatRule, "d"), nil)
	o.northd.Await("the end of the address", func(*nbtest.Server) bool {
		return len(o.mentions("192.0.2.11")) == 0 && len(o.mentions("192.0.2.13")) == 0
	})
	if nat, lb := o.server.Rows("NAT"), o.server.Rows("Load_Balancer"); len(nat) != 0 || len(lb) != 1 { // of the Service
		t.Errorf("rows are left: %v, %v", nat, lb)
	}
}

// ovn-northd translates no address of one family to one of the other. Rules have a problem instead.
func TestNorthdRefusesMixedFamilies(t *testing.T) {
	o := newOutside(t, "ext")
	in := translate.OvnNATInputs{Kind: translate.KindOvnFip, Name: "a", Vpc: "blue", Subnet: "ext"}
	for i, inside := range podAddresses("a") {
		in.Pairs = append(in.Pairs, translate.NATPair{External: externalAddress("ext", 1-i, 11), Internal: inside})
	}
	o.apply(translate.OvnNATOwner(in.Kind, in.Name), translate.OvnNAT(in))
	o.northd.Settled()
	for _, flow := range slices.Concat(o.flows("lr_in_dnat"), o.flows("lr_out_snat")) {
		if strings.Contains(flow, "ct_dnat(") || strings.Contains(flow, "ct_snat(") {
			t.Errorf("a flow of mixed families: %s", flow)
		}
	}
}

// mentions returns the flows with an address.
func (o outside) mentions(address string) []string {
	var flows []string
	for _, row := range o.northd.Southbound.Rows("Logical_Flow") {
		if flow := fmt.Sprint(row["match"], " => ", row["actions"]); strings.Contains(flow, address) {
			flows = append(flows, flow)
		}
	}
	return flows
}

// Answers of a port that two rules translate in two external subnets have two flows with one match and one priority: OVN chooses one of them. So only one rule may have a policy.
// Answers of another internal port have a flow of their own.
func TestNorthdHasNoOrderOfEqualPolicies(t *testing.T) {
	o := newOutside(t, "ext", "ext2")
	for i, c := range []struct {
		subnet   string
		internal uint16
	}{{"ext", 8080}, {"ext2", 8080}, {"ext2", 8081}} {
		in := translate.OvnNATInputs{
			Kind: translate.KindOvnDnatRule, Name: fmt.Sprint("d", i), Vpc: "blue", Subnet: c.subnet, Protocol: corev1.ProtocolTCP, ExternalPort: 80 + uint16(i), InternalPort: c.internal,
		}
		for family, inside := range podAddresses("a") {
			in.Pairs = append(in.Pairs, translate.NATPair{External: externalAddress(c.subnet, family, 13), Internal: inside, NextHop: externalAddress(c.subnet, family, 254)})
		}
		o.apply(translate.OvnNATOwner(in.Kind, in.Name), translate.OvnNAT(in))
	}
	o.northd.Settled()
	got := map[string]int{}
	for _, row := range o.northd.Southbound.Rows("Logical_Flow") {
		if row["external_ids"].(map[string]string)["stage-name"] == "lr_in_policy" {
			for _, port := range []string{"tcp.src == 8080", "tcp.src == 8081"} {
				if match := fmt.Sprint(row["match"]); strings.Contains(match, port) {
					got[fmt.Sprint(row["priority"], " ", match)]++
				}
			}
		}
	}
	want := map[string]int{
		"29248 ip4.src == 10.16.0.2 && tcp.src == 8080": 2, "29248 ip6.src == fd00:16::2 && tcp.src == 8080": 2,
		"29248 ip4.src == 10.16.0.2 && tcp.src == 8081": 1, "29248 ip6.src == fd00:16::2 && tcp.src == 8081": 1,
	}
	if !maps.Equal(got, want) {
		t.Errorf("the flows of policies are %v, want %v", got, want)
	}
}
