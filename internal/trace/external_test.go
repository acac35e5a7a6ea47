// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

func allSituations() map[string]func(c *cluster) situation {
	all := maps.Clone(situations)
	maps.Copy(all, externalSituations)
	maps.Copy(all, ownerSituations)
	return all
}

// Addresses of the OvnEips of external, by their numbers.
func eipV4(n int) string { return fmt.Sprintf("192.0.2.%d", n) }
func eipV6(n int) string { return fmt.Sprintf("2001:db8:2::%d", n) }

// connect adds external subnet ext with OvnEips e1 (30) and e2 (31), and a port of a VPC's router there.
func connect(c *cluster, vpc *kubeovnv1.Vpc) {
	vpc.Spec.ExtraExternalSubnets, vpc.Status.ExtraExternalSubnets = []string{"ext"}, []string{"ext"}
	ext := c.newSubnet("ext", "192.0.2.0/24,2001:db8:2::/112", kubeovnv1.SubnetSpec{Vlan: "vlan9"})
	ext.Spec.Gateway = "192.0.2.254,2001:db8:2::fe"
	for name, n := range map[string]int{vpc.Name + "-ext": 21, "e1": 30, "e2": 31} {
		c.eip(name, "ext", eipV4(n), eipV6(n))
	}
}

func (c *cluster) eip(name, subnet, v4, v6 string) {
	eip := &kubeovnv1.OvnEip{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.OvnEipSpec{ExternalSubnet: subnet}}
	eip.Status.V4IP, eip.Status.V6IP = v4, v6
	c.Eips = append(c.Eips, eip)
}

// external adds VPC red with pod bank/b (10), and its port in external subnet ext.
func external(c *cluster) *kubeovnv1.Vpc {
	red := custom(c)
	connect(c, red)
	return red
}

// sessions sets the status of the BFD sessions with the gateways of subnet ext.
func (c *cluster) sessions(vpc *kubeovnv1.Vpc, status string) {
	for gateway := range strings.SplitSeq(c.subnet("ext").Spec.Gateway, ",") {
		vpc.Status.BFDSessions = append(vpc.Status.BFDSessions, kubeovnv1.BFDSession{Subnet: "ext", Peer: gateway, Status: status})
	}
}

func waits(message string) []metav1.Condition {
	return []metav1.Condition{{Type: kubeovnv1.ConditionReady, Status: metav1.ConditionFalse, Message: message}}
}

func snatRule(c *cluster, applied bool) *kubeovnv1.OvnSnatRule {
	rule := &kubeovnv1.OvnSnatRule{ObjectMeta: metav1.ObjectMeta{Name: "out"}, Spec: kubeovnv1.OvnSnatRuleSpec{OvnEip: "e2", VpcSubnet: "red-1"}}
	rule.Status = kubeovnv1.OvnSnatRuleStatus{Ready: true, Vpc: "red", V4Eip: eipV4(31), V6Eip: eipV6(31), V4IPCIDR: "10.30.0.0/24", V6IPCIDR: "fd00:10:30::/112"}
	if !applied {
		rule.Status = kubeovnv1.OvnSnatRuleStatus{Vpc: "red", Conditions: waits("it waits")}
	}
	c.ExternalRules = append(c.ExternalRules, rule)
	return rule
}

// fip adds an OvnFip of a pod with the addresses number n.
func fip(c *cluster, pod *corev1.Pod, n int) *kubeovnv1.OvnFip {
	network, err := kubeovnv1.ParsePodNetwork(pod.Annotations)
	if err != nil {
		panic(err)
	}
	rule := &kubeovnv1.OvnFip{ObjectMeta: metav1.ObjectMeta{Name: "for-" + pod.Name}, Spec: kubeovnv1.OvnFipSpec{OvnEip: fmt.Sprint("e", n-29), IPName: pod.Name + "." + pod.Namespace}}
	rule.Status = kubeovnv1.OvnFipStatus{
		Ready: true, Vpc: network.LogicalRouter, V4Eip: eipV4(n), V6Eip: eipV6(n), V4IP: network.Addresses[0].String(), V6IP: network.Addresses[1].String(),
	}
	c.ExternalRules = append(c.ExternalRules, rule)
	return rule
}

func (c *cluster) last() *corev1.Pod { return c.Pods[len(c.Pods)-1] }

func dnat(c *cluster) {
	rule := &kubeovnv1.OvnDnatRule{ObjectMeta: metav1.ObjectMeta{Name: "https"}, Spec: kubeovnv1.OvnDnatRuleSpec{OvnEip: "e2", IPName: "b.bank"}}
	rule.Status = kubeovnv1.OvnDnatRuleStatus{
		Ready: true, Vpc: "red", V4Eip: eipV4(31), V6Eip: eipV6(31), V4IP: "10.30.0.10", V6IP: "fd00:10:30::a", Protocol: "tcp", ExternalPort: "443", InternalPort: "8443",
	}
	c.ExternalRules = append(c.ExternalRules, rule)
}

// routerRule adds RouterLBRule front of a VPC with OvnEip e2, port 80 and a fixed endpoint of each family.
func routerRule(c *cluster, vpc string, endpoints ...string) {
	rule := &kubeovnv1.RouterLBRule{ObjectMeta: metav1.ObjectMeta{Name: "front"}, Spec: kubeovnv1.RouterLBRuleSpec{VPC: vpc, OvnEip: "e2"}}
	rule.Spec.Endpoints = endpoints
	rule.Spec.Ports = []kubeovnv1.LBRulePort{{Name: "http", Port: 80, TargetPort: 8080, Protocol: "TCP"}}
	c.RouterRules = append(c.RouterRules, rule)
}

// byEip makes a pod of VPC red serve the Service bank/b, with the addresses of OvnEip e2 and port 80.
func byEip(c *cluster) *corev1.Service {
	s := c.serve(c.last(), 5)
	s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, new(kubeovnv1.ClassOvnEip)
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	for _, a := range []string{eipV4(31), eipV6(31)} {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a, IPMode: new(corev1.LoadBalancerIPModeProxy)})
	}
	return s
}

var world = End{Host: "www.example.com", Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8::9")}}

func worldwide(namespace, name string) Query { return tcp(podEnd(namespace, name), world, 443) }

// eipEnd is the end with the addresses number n.
func eipEnd(n int) End {
	return End{Host: "web", Addresses: []netip.Addr{netip.MustParseAddr(eipV4(n)), netip.MustParseAddr(eipV6(n))}}
}

func fromWorld(n int, port uint16) Query { return tcp(world, eipEnd(n), port) }

func (q Query) ping() Query {
	q.Protocol, q.Port = ICMP, 0
	return q
}

// externalSituations are those with rules for external addresses.
var externalSituations = map[string]func(c *cluster) situation{
	"a custom VPC with an external subnet and an OvnSnatRule": func(c *cluster) situation {
		external(c)
		snatRule(c, true)
		return situation{query: worldwide("bank", "b"), verdict: Delivered, says: "OvnSnatRule out gives the packet source"}
	},
	"an OvnFip precedes an OvnSnatRule": func(c *cluster) situation {
		external(c)
		snatRule(c, true)
		fip(c, c.last(), 30)
		return situation{query: worldwide("bank", "b"), verdict: Delivered, says: "OvnFip for-b gives the packet source"}
	},
	"an OvnFip in the default VPC": func(c *cluster) situation {
		connect(c, c.Vpcs[0])
		fip(c, c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet), 30)
		return situation{query: worldwide("shop", "a"), verdict: Delivered, says: "OvnFip for-a sends the packet to next hop"}
	},
	"a pod without a rule in the default VPC with an external subnet": func(c *cluster) situation {
		connect(c, c.Vpcs[0])
		fip(c, c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet), 30)
		c.run("shop", "c", "n1", kubeovnv1.DefaultSubnet)
		return situation{query: worldwide("shop", "c"), verdict: Delivered, says: "leaves through node n1 with the node's address"}
	},
	"an OvnFip in the default VPC does not change the way to pods": func(c *cluster) situation {
		q := twoPods(c)
		connect(c, c.Vpcs[0])
		fip(c, c.Pods[0], 30)
		return situation{query: q, verdict: Delivered, says: "reaches pod bank/b"}
	},
	"an OvnFip does not change the way over a link": func(c *cluster) situation {
		q := linked(c, func(_, _ *kubeovnv1.Vpc) (string, func()) { return "", nil }).query
		connect(c, c.Vpcs[1])
		fip(c, c.Pods[0], 30)
		return situation{query: q, verdict: Delivered, says: "over the link to Vpc blue"}
	},
	"an OvnFip in a VPC with a default route of its own": func(c *cluster) situation {
		red := external(c)
		red.Spec.StaticRoutes = []*kubeovnv1.StaticRoute{{CIDR: "0.0.0.0/0", NextHopIP: "10.30.0.99"}, {CIDR: "::/0", NextHopIP: "fd00:10:30::99"}}
		fip(c, c.last(), 30)
		return situation{query: worldwide("bank", "b"), verdict: Delivered, says: "OvnFip for-b sends the packet to next hop"}
	},
	"a rule of the second external subnet": func(c *cluster) situation {
		red := external(c)
		red.Status.ExtraExternalSubnets = []string{"ext", "ext2"}
		c.newSubnet("ext2", "198.51.100.0/24,2001:db8:3::/112", kubeovnv1.SubnetSpec{Vlan: "vlan8"}).Spec.Gateway = "198.51.100.254,2001:db8:3::fe"
		c.eip("red-ext2", "ext2", "198.51.100.21", "2001:db8:3::21")
		rule := snatRule(c, true)
		rule.Status.V4Eip, rule.Status.V6Eip = "198.51.100.31", "2001:db8:3::31"
		return situation{query: worldwide("bank", "b"), verdict: Delivered, says: "sends it out by external subnet ext2"}
	},
	"a rule whose current spec is not valid": func(c *cluster) situation {
		external(c)
		rule := snatRule(c, true)
		rule.Status.ValidatedSpec = rule.Spec.DeepCopy()
		rule.Spec.VpcSubnet, rule.Spec.V4IPCIDR, rule.Status.Conditions = "", "no CIDR", waits("vpc is empty; the last valid spec stays applied")
		return situation{query: worldwide("bank", "b"), verdict: Delivered, says: "OvnSnatRule out is not ready: vpc is empty; the last valid spec stays applied"}
	},
	"an external subnet without a rule": func(c *cluster) situation {
		external(c)
		return situation{query: worldwide("bank", "b"), verdict: CannotTell, says: "with the pod's address", by: "Vpc red extraExternalSubnets"}
	},
	"an external subnet with a rule that is not applied": func(c *cluster) situation {
		external(c)
		snatRule(c, false)
		return situation{query: worldwide("bank", "b"), verdict: CannotTell, says: "OvnSnatRule out is not applied: it waits", by: "Vpc red extraExternalSubnets"}
	},
	"a default route without a BFD session": func(c *cluster) situation {
		red := external(c)
		snatRule(c, true)
		red.Spec.EnableBfd = true
		c.sessions(red, "down")
		return situation{query: worldwide("bank", "b"), verdict: Dropped, says: "because the BFD session with this router is down", by: "Vpc red enableBfd"}
	},
	"a default route with a BFD session": func(c *cluster) situation {
		red := external(c)
		snatRule(c, true)
		red.Spec.EnableBfd = true
		c.sessions(red, "up")
		return situation{query: worldwide("bank", "b"), verdict: Delivered, says: "sends it out by external subnet ext"}
	},
	"a static route without a BFD session": func(c *cluster) situation {
		red := external(c)
		snatRule(c, true)
		ext := c.subnet("ext")
		for i, cidr := range []string{"0.0.0.0/0", "::/0"} {
			red.Spec.StaticRoutes = append(red.Spec.StaticRoutes, &kubeovnv1.StaticRoute{CIDR: cidr, NextHopIP: strings.Split(ext.Spec.Gateway, ",")[i], BFDID: "x"})
		}
		c.sessions(red, "down")
		return situation{query: worldwide("bank", "b"), verdict: Dropped, says: "because the BFD session with this router is down", by: "Vpc red staticRoutes"}
	},
	"an external subnet that is not connected": func(c *cluster) situation {
		red := external(c)
		red.Status.ExtraExternalSubnets = nil
		red.Status.Conditions = []metav1.Condition{{Type: kubeovnv1.ConditionExternalReady, Status: metav1.ConditionFalse, Message: "no node is ready"}}
		return situation{query: worldwide("bank", "b"), verdict: Dropped, says: "no port in external subnet ext (no node is ready)", by: "Vpc red extraExternalSubnets"}
	},
	"an external subnet of one family": func(c *cluster) situation {
		red := external(c)
		for _, eip := range c.Eips {
			eip.Status.V6IP = ""
		}
		red.Spec.ClusterAccess = kubeovnv1.ClusterAccessNone
		return situation{query: worldwide("bank", "b"), verdict: Dropped, says: "its router has no IPv6 address in external subnet ext", by: "Vpc red extraExternalSubnets", one: true}
	},
	"OvnEips that may not be read": func(c *cluster) situation {
		q := twoPods(c)
		connect(c, c.Vpcs[0])
		c.Eips, c.Unread = nil, []Unread{{Resource: ResourceEips, Verb: "list"}, {Resource: "ovn-fips.kubeovn.io", Verb: "list"}}
		return situation{query: q, verdict: Delivered, says: "reaches pod bank/b"}
	},
	"rules that may not be read": func(c *cluster) situation {
		connect(c, c.Vpcs[0])
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.Eips, c.Unread = nil, []Unread{{Resource: ResourceEips, Verb: "list"}, {Resource: "ovn-fips.kubeovn.io", Verb: "list"}}
		return situation{query: worldwide("shop", "a"), verdict: CannotTell, says: "list ovn-eips.kubeovn.io is not permitted"}
	},
	"from outside to an OvnFip": func(c *cluster) situation {
		external(c)
		fip(c, c.last(), 30)
		return situation{query: fromWorld(30, 80), verdict: Delivered, says: "OvnFip for-b forwards the packet to"}
	},
	"from outside to an OvnFip of the default VPC": func(c *cluster) situation {
		connect(c, c.Vpcs[0])
		fip(c, c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet), 30)
		return situation{query: fromWorld(30, 80), verdict: Delivered, says: "reaches pod shop/a"}
	},
	"from the external subnet to an OvnFip": func(c *cluster) situation {
		external(c)
		fip(c, c.last(), 30)
		client := End{Host: "client", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.200"), netip.MustParseAddr("2001:db8:2::200")}}
		return situation{query: tcp(client, eipEnd(30), 80), verdict: Delivered, says: "is in the physical network of subnet ext"}
	},
	"from outside to an OvnFip under a policy": func(c *cluster) situation {
		external(c)
		fip(c, c.last(), 30)
		c.isolate("bank", "deny", "Ingress")
		return situation{query: fromWorld(30, 80), verdict: Dropped, says: "isolates pod bank/b", by: "NetworkPolicy bank/deny"}
	},
	"from outside to an OvnFip whose answers are dropped": func(c *cluster) situation {
		red := external(c)
		fip(c, c.last(), 30)
		red.Spec.PolicyRoutes = []*kubeovnv1.PolicyRoute{{Priority: 30000, Match: "tcp.src == 80", Action: kubeovnv1.PolicyRouteDrop}}
		return situation{query: fromWorld(30, 80), verdict: Dropped, says: "the answer of pod bank/b is lost", by: "Vpc red policyRoutes[0]"}
	},
	"from outside to an OvnFip that is not applied": func(c *cluster) situation {
		external(c)
		rule := fip(c, c.last(), 30)
		rule.Status = kubeovnv1.OvnFipStatus{Vpc: "red", Conditions: waits("it waits")}
		return situation{query: fromWorld(30, 80), verdict: Dropped, says: "it waits", by: "OvnFip for-b"}
	},
	"from outside to an OvnFip of a Vip": func(c *cluster) situation {
		external(c)
		rule := fip(c, c.last(), 30)
		rule.Spec.IPName, rule.Spec.IPType = "shared", "vip"
		rule.Status.V4IP, rule.Status.V6IP = "10.30.0.99", "fd00:10:30::99"
		return situation{query: fromWorld(30, 80), verdict: CannotTell, says: "is the address of Vip shared"}
	},
	"from outside to a port of an OvnDnatRule": func(c *cluster) situation {
		external(c)
		dnat(c)
		return situation{query: fromWorld(31, 443), verdict: Delivered, says: "OvnDnatRule https forwards the packet to"}
	},
	"answers of a connection that came by an OvnDnatRule": func(c *cluster) situation {
		external(c)
		dnat(c)
		q := tcp(podEnd("bank", "b"), world, 8443)
		q.Answer = true
		return situation{query: q, verdict: Delivered, says: "OvnDnatRule https gives the packet source"}
	},
	"answers of a port that rules forward in two external subnets": func(c *cluster) situation {
		red := external(c)
		red.Status.ExtraExternalSubnets = []string{"ext2", "ext"}
		c.newSubnet("ext2", "198.51.100.0/24,2001:db8:3::/112", kubeovnv1.SubnetSpec{Vlan: "vlan8"}).Spec.Gateway = "198.51.100.254,2001:db8:3::fe"
		c.eip("red-ext2", "ext2", "198.51.100.21", "2001:db8:3::21")
		dnat(c)
		second := c.ExternalRules[len(c.ExternalRules)-1].DeepCopyObject().(*kubeovnv1.OvnDnatRule)
		second.Name, second.Status.V4Eip, second.Status.V6Eip = "second", "198.51.100.31", "2001:db8:3::31"
		c.ExternalRules = append(c.ExternalRules, second)
		q := tcp(podEnd("bank", "b"), world, 8443)
		q.Answer = true
		return situation{query: q, verdict: Delivered, says: "sends it out by external subnet ext2"}
	},
	"from outside to another port": func(c *cluster) situation {
		external(c)
		dnat(c)
		return situation{query: fromWorld(31, 80), verdict: Dropped, says: "its rules have 443/TCP", by: "OvnEip e2"}
	},
	"a ping from outside of a router's own address": func(c *cluster) situation {
		external(c)
		return situation{query: fromWorld(21, 0).ping(), verdict: Delivered, says: "is an address of the router of Vpc red"}
	},
	"from outside to a RouterLBRule of a custom VPC": func(c *cluster) situation {
		external(c)
		c.run("shop", "same", "n1", kubeovnv1.DefaultSubnet)
		routerRule(c, "red", "10.30.0.10", "fd00:10:30::a")
		return situation{query: fromWorld(31, 80), verdict: Delivered, says: "reaches pod bank/b"}
	},
	"from outside to a RouterLBRule of a VPC without the external subnet": func(c *cluster) situation {
		external(c).Status.ExtraExternalSubnets = nil
		routerRule(c, "red", "10.30.0.10", "fd00:10:30::a")
		return situation{query: fromWorld(31, 80), verdict: Dropped, says: "serves pods of Vpc red only", by: "Vpc red extraExternalSubnets"}
	},
	"from outside to a RouterLBRule of the default VPC": func(c *cluster) situation {
		connect(c, c.Vpcs[0])
		pod := c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		network, _ := kubeovnv1.ParsePodNetwork(pod.Annotations)
		routerRule(c, "", network.Addresses[0].String(), network.Addresses[1].String())
		service := c.serve(pod, 5)
		service.Name, service.Spec.ExternalIPs, service.Spec.Ports[0].TargetPort = "rlr-front", []string{eipV4(31), eipV6(31)}, intstr.FromInt(8080)
		c.endpoints(service, pod)
		return situation{query: fromWorld(31, 80), verdict: Delivered, says: "node n1 sends it to endpoint"}
	},
	"from outside to a Service with the addresses of an OvnEip": func(c *cluster) situation {
		external(c)
		byEip(c)
		return situation{query: fromWorld(31, 80), verdict: Delivered, says: "Service bank/b sends the packet to one of 1 endpoints"}
	},
	"from outside to another port of such a Service": func(c *cluster) situation {
		external(c)
		byEip(c)
		return situation{query: fromWorld(31, 81), verdict: Dropped, says: "its rules have 80/TCP", by: "OvnEip e2"}
	},
	"from a pod to a Service of its VPC with the addresses of an OvnEip": func(c *cluster) situation {
		external(c)
		byEip(c)
		c.run("bank", "c", "n1", "red-1")
		return situation{query: tcp(podEnd("bank", "c"), eipEnd(31), 80), verdict: Delivered, says: "Service bank/b sends the packet to one of 1 endpoints"}
	},
	"from outside to a Service that the OvnEip does not list": func(c *cluster) situation {
		external(c)
		s := byEip(c)
		s.Annotations[kubeovnv1.AnnotationIPAddress.Key()], s.Status.LoadBalancer.Ingress = eipV4(31)+","+eipV6(31), nil
		s.Status.Conditions = []metav1.Condition{{Type: kubeovnv1.ConditionAddressAssigned, Status: metav1.ConditionFalse, Message: "no OvnEip has it for namespace bank"}}
		return situation{query: fromWorld(31, 80), verdict: Dropped, says: "does not have tcp port 80: no OvnEip has it for namespace bank", by: "Service bank/b"}
	},
	"two RouterLBRules of one OvnEip": func(c *cluster) situation {
		external(c)
		routerRule(c, "red", "10.30.0.10", "fd00:10:30::a")
		routerRule(c, "red", "10.30.0.10", "fd00:10:30::a")
		c.RouterRules[1].Name, c.RouterRules[1].Spec.Ports[0].Port = "other", 81
		return situation{query: fromWorld(31, 81), verdict: Delivered, says: "RouterLBRule other sends the packet"}
	},
	"from a pod to a port of an OvnDnatRule of its VPC": func(c *cluster) situation {
		external(c)
		dnat(c)
		c.run("bank", "c", "n1", "red-1")
		return situation{query: tcp(podEnd("bank", "c"), eipEnd(31), 443), verdict: Delivered, says: "OvnDnatRule https sends the packet to one of 1 endpoints"}
	},
	"from a pod to such a port, which a Service of the OvnEip requests, too": func(c *cluster) situation {
		external(c)
		dnat(c)
		s := byEip(c)
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "https", Port: 443})
		c.run("bank", "c", "n1", "red-1")
		return situation{query: tcp(podEnd("bank", "c"), eipEnd(31), 443), verdict: Delivered, says: "OvnDnatRule https sends the packet to one of 1 endpoints"}
	},
	"from an OvnFip to another one of the VPC": func(c *cluster) situation {
		external(c)
		fip(c, c.last(), 30)
		fip(c, c.run("bank", "c", "n1", "red-1"), 31)
		return situation{query: tcp(podEnd("bank", "c"), eipEnd(30), 80), verdict: Delivered, says: "OvnFip for-b forwards the packet to"}
	},
	"from a pod without a rule to an OvnFip of its VPC": func(c *cluster) situation {
		external(c)
		fip(c, c.last(), 30)
		c.run("bank", "c", "n1", "red-1")
		return situation{query: tcp(podEnd("bank", "c"), eipEnd(30), 80), verdict: CannotTell, says: "the packet keeps the pod's address", by: "Vpc red extraExternalSubnets"}
	},
	"from a pod of the default VPC to an OvnFip of another one": func(c *cluster) situation {
		external(c)
		fip(c, c.last(), 30)
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		return situation{query: tcp(podEnd("shop", "a"), eipEnd(30), 80), verdict: Delivered, says: "OvnFip for-b forwards the packet to"}
	},
	"from a pod of the default VPC to an OvnFip under a policy": func(c *cluster) situation {
		external(c)
		fip(c, c.last(), 30)
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.isolate("bank", "deny", "Ingress")
		return situation{query: tcp(podEnd("shop", "a"), eipEnd(30), 80), verdict: Dropped, by: "NetworkPolicy bank/deny"}
	},
	"from a node to an OvnFip": func(c *cluster) situation {
		external(c)
		fip(c, c.last(), 30)
		return situation{query: tcp(End{Node: "n1"}, eipEnd(30), 80), verdict: Delivered, says: "reaches pod bank/b"}
	},
	"an external subnet and Services by the gateway router": func(c *cluster) situation {
		red := external(c)
		red.Spec.ClusterAccess = kubeovnv1.ClusterAccessServices
		red.Status.Transit = &kubeovnv1.VpcTransit{Node: "n1", Addresses: []string{"100.64.0.50", "fd00:100:64::50"}}
		fip(c, c.last(), 30)
		c.serve(c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet), 9)
		return situation{query: tcp(podEnd("bank", "b"), serviceEnd("shop", "a"), 80), verdict: Delivered, says: "the gateway router of Vpc red sends the packet through node n1"}
	},
}
