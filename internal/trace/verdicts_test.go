// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/api/v1alpha1"
)

// situation is a question with its answer: the verdict, a part of the steps, and the object that decides if the packet is not delivered.
type situation struct {
	query   Query
	verdict Verdict
	says    string
	by      string
	// one: only one of the families has this answer.
	one bool
}

// twoPods adds pod shop/a on n1 and pod bank/b on n2 in the default subnet, and returns a query from a to b.
func twoPods(c *cluster) Query {
	c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
	c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
	return tcp(podEnd("shop", "a"), podEnd("bank", "b"), 80)
}

// toOutside is a query from pod shop/a in a subnet to a host outside.
func toOutside(c *cluster, spec kubeovnv1.SubnetSpec) (*kubeovnv1.Subnet, Query) {
	s := c.newSubnet("out", "10.40.0.0/24,fd00:10:40::/112", spec)
	c.run("shop", "a", "n1", "out")
	return s, Query{From: podEnd("shop", "a"), To: End{Host: "www.example.com", Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("2001:db8::9")}}, Protocol: TCP, Port: 443}
}

// physical adds pod shop/a on an underlay subnet.
func physical(c *cluster, spec kubeovnv1.SubnetSpec) *kubeovnv1.ProviderNetwork {
	spec.Vlan = "vlan1"
	c.newSubnet("under", "10.60.0.0/24,fd00:10:60::/112", spec)
	c.run("shop", "a", "n1", "under")
	network := &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: "net1"}}
	network.Status.ReadyNodes = []string{"n1", "n2"}
	c.Networks = append(c.Networks, network)
	return network
}

var situations = map[string]func(c *cluster) situation{
	"pods of one subnet": func(c *cluster) situation {
		return situation{query: twoPods(c), verdict: Delivered, says: "reaches pod bank/b"}
	},
	"pods of two subnets": func(c *cluster) situation {
		c.newSubnet("other", "10.20.0.0/24,fd00:10:20::/112", kubeovnv1.SubnetSpec{})
		c.run("shop", "a", "n1", "other")
		c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
		return situation{query: tcp(podEnd("shop", "a"), podEnd("bank", "b"), 80), verdict: Delivered, says: "reaches pod bank/b"}
	},
	"another source address without port security": func(c *cluster) situation {
		q := twoPods(c)
		q.SourceAddress = netip.MustParseAddr("10.16.0.99")
		return situation{query: q, verdict: Delivered, says: "has no port security", one: true}
	},
	"another source address with port security": func(c *cluster) situation {
		q := twoPods(c)
		c.Cluster.Spec.Tenancy.PortSecurity = kubeovnv1.PortSecurityEnforced
		q.SourceAddress = netip.MustParseAddr("10.16.0.99")
		return situation{query: q, verdict: Dropped, says: "sends from 02:00:00:00:00:0a 10.16.0.10", by: "Pod shop/a port security", one: true}
	},
	"another hardware address with port security of the subnet": func(c *cluster) situation {
		q := twoPods(c)
		c.Subnets[0].Spec.PortSecurity = kubeovnv1.PortSecurityEnforced
		q.SourceMAC = net.HardwareAddr{2, 0, 0, 0, 0, 99}
		return situation{query: q, verdict: Dropped, by: "Pod shop/a port security"}
	},
	"an address that the port may share with port security": func(c *cluster) situation {
		q := twoPods(c)
		c.Subnets[0].Spec.PortSecurity, c.Subnets[0].Spec.Vips = kubeovnv1.PortSecurityEnforced, []string{"10.16.0.99"}
		c.Pods[0].Annotations[kubeovnv1.AnnotationPortVips.Key()] = "10.16.0.99"
		q.SourceAddress = netip.MustParseAddr("10.16.0.99")
		return situation{query: q, verdict: Delivered, one: true}
	},
	"answers of a connection under policies of both ends": func(c *cluster) situation {
		q := twoPods(c)
		c.isolate("bank", "deny", "Ingress")
		c.isolate("shop", "deny", "Egress")
		q.Answer = true
		return situation{query: q, verdict: Delivered, says: "answers a connection"}
	},
	"answers without a route": func(c *cluster) situation {
		custom(c)
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		return situation{query: Query{From: podEnd("bank", "b"), To: podEnd("shop", "a"), Protocol: TCP, Port: 80, Answer: true}, verdict: Dropped, by: "Vpc red vpcPeerings"}
	},
	"a distributed gateway": func(c *cluster) situation {
		_, q := toOutside(c, kubeovnv1.SubnetSpec{NATOutgoing: true})
		return situation{query: q, verdict: Delivered, says: "leaves through node n1 with the node's address"}
	},
	"a centralized gateway": func(c *cluster) situation {
		s, q := toOutside(c, kubeovnv1.SubnetSpec{NATOutgoing: true, GatewayType: kubeovnv1.GatewayCentralized, GatewayNode: "n2"})
		s.Status.ActivateGateway = "n2"
		return situation{query: q, verdict: Delivered, says: "leaves through node n2 with the node's address"}
	},
	"an egress address": func(c *cluster) situation {
		s, q := toOutside(c, kubeovnv1.SubnetSpec{NATOutgoing: true, GatewayType: kubeovnv1.GatewayCentralized, GatewayNode: "n2:172.18.0.77"})
		s.Status.ActivateGateway = "n2"
		return situation{query: q, verdict: Delivered, says: "with the node's address 172.18.0.77", one: true}
	},
	"a pod with a fixed source address": func(c *cluster) situation {
		_, q := toOutside(c, kubeovnv1.SubnetSpec{})
		e := c.egress("out", "name=shop")
		e.Status.Node, e.Status.Addresses = "n2", e.Spec.Addresses
		c.egress("younger", "name=shop")
		c.egress("foreign", "name=bank")
		return situation{query: q, verdict: Delivered, says: "EgressAddress out selects the pod: the packet leaves through node n2 with the address "}
	},
	"a pod whose rule for the OvnEip of its EgressAddress is not applied": func(c *cluster) situation {
		_, q := toOutside(c, kubeovnv1.SubnetSpec{NATOutgoing: true})
		e := c.egress("out", "name=shop")
		e.Status.Addresses, e.Spec.Addresses, e.Spec.NodeSelector, e.Spec.OvnEip = e.Spec.Addresses, nil, nil, "shop"
		return situation{query: q, verdict: Dropped, by: "EgressAddress out", says: "EgressAddress out selects the pod, and no rule for the pod with the addresses of OvnEip shop is applied"}
	},
	"a pod of the default VPC, and EgressAddresses that the user may not read": func(c *cluster) situation {
		_, q := toOutside(c, kubeovnv1.SubnetSpec{NATOutgoing: true})
		c.Unread = []Unread{{Resource: ResourceEgresses, Verb: "list"}}
		return situation{query: q, verdict: CannotTell, says: "whether an EgressAddress selects the pod"}
	},
	"a subnet without natOutgoing": func(c *cluster) situation {
		_, q := toOutside(c, kubeovnv1.SubnetSpec{})
		return situation{query: q, verdict: CannotTell, says: "answers come back only if the network outside has a route to 10.40.0.0/24,fd00:10:40::/112", by: "Subnet out natOutgoing"}
	},
	"a rule of natOutgoingPolicyRules that keeps the source": func(c *cluster) situation {
		_, q := toOutside(c, kubeovnv1.SubnetSpec{NATOutgoing: true, NATOutgoingPolicyRules: []kubeovnv1.NATOutgoingPolicyRule{
			{Action: "forward", Match: kubeovnv1.NATOutgoingPolicyMatch{DstIPs: "203.0.113.0/24"}},
		}})
		return situation{query: q, verdict: CannotTell, says: "natOutgoingPolicyRules[0] keeps the pod's address", one: true}
	},
	"an external gateway": func(c *cluster) situation {
		s, q := toOutside(c, kubeovnv1.SubnetSpec{GatewayType: kubeovnv1.GatewayCentralized, GatewayNode: "n2", ExternalEgressGateway: "172.18.0.254"})
		s.Status.ActivateGateway = "n2"
		return situation{query: q, verdict: CannotTell, says: "router 172.18.0.254"}
	},
	"a node": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		return situation{query: tcp(podEnd("shop", "a"), End{Node: "n2"}, 10250), verdict: Delivered, says: "reaches node n2"}
	},
	"a pod on the network of its node": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.runOnHost("bank", "b", "n2")
		return situation{query: tcp(podEnd("shop", "a"), podEnd("bank", "b"), 80), verdict: Delivered, says: "reaches node n2"}
	},
	"from a node": func(c *cluster) situation {
		twoPods(c)
		c.isolate("bank", "deny", "Ingress")
		return situation{query: tcp(End{Node: "n2"}, podEnd("bank", "b"), 80), verdict: Delivered, says: "own node"}
	},
	"from another node under a policy": func(c *cluster) situation {
		twoPods(c)
		c.isolate("bank", "deny", "Ingress")
		return situation{query: tcp(End{Node: "n1"}, podEnd("bank", "b"), 80), verdict: Dropped, by: "NetworkPolicy bank/deny"}
	},
	"a node port from outside": func(c *cluster) situation {
		c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5)
		return situation{query: tcp(addrEnd("203.0.113.9"), End{Node: "n1"}, 30080), verdict: Delivered, says: "reaches pod bank/b", one: true}
	},
	"a node port from a pod": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5)
		return situation{query: tcp(podEnd("shop", "a"), End{Node: "n2"}, 30080), verdict: Delivered, says: "reaches pod bank/b"}
	},
	"a load balancer's address from outside with a local policy": func(c *cluster) situation {
		service := c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5)
		service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		service.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.7"}}
		return situation{query: tcp(addrEnd("203.0.113.9"), addrEnd("198.51.100.7"), 80), verdict: Delivered, says: "reaches pod bank/b", one: true}
	},
	"session affinity": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5).Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		return situation{query: tcp(podEnd("shop", "a"), serviceEnd("bank", "b"), 80), verdict: Delivered, says: "Service bank/b sends the packet to one of 1 endpoints"}
	},
	"the API server's Service": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		service := c.serve(c.run("default", "kubernetes", "n2", kubeovnv1.DefaultSubnet), 1)
		service.Spec.Selector = nil
		c.Pods = c.Pods[:1]
		for i, slice := range c.Slices {
			address := "172.18.0.2"
			if slice.AddressType == discoveryv1.AddressTypeIPv6 {
				address = "fc00:172::2"
			}
			c.Slices[i].Endpoints = []discoveryv1.Endpoint{{Addresses: []string{address}}}
		}
		return situation{query: tcp(podEnd("shop", "a"), serviceEnd("default", "kubernetes"), 80), verdict: Delivered, says: "reaches node n1"}
	},
	"one of two endpoints under a policy": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		b := c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
		service := c.serve(b, 5)
		c.endpoints(service, b, c.run("bank", "c", "n1", kubeovnv1.DefaultSubnet))
		c.isolate("bank", "deny", "Ingress").Spec.PodSelector.MatchLabels = map[string]string{"app": "c"}
		return situation{query: tcp(podEnd("shop", "a"), serviceEnd("bank", "b"), 80), verdict: CannotTell, says: "of 2, the packet reaches 1 and is dropped on the way to 1", by: "NetworkPolicy bank/deny"}
	},
	"a Service of nodes": func(c *cluster) situation {
		c.Cluster.Spec.Services.PodAccess = v1alpha1.PodAccessNode
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5)
		return situation{query: tcp(podEnd("shop", "a"), serviceEnd("bank", "b"), 80), verdict: Delivered, says: "node n1 sends it to endpoint"}
	},
	"a headless Service": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		service := c.serve(c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet), 5)
		service.Spec.ClusterIP, service.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
		return situation{query: tcp(podEnd("shop", "a"), serviceEnd("bank", "b"), 80), verdict: CannotTell, says: "is headless", by: "Service bank/b", one: true}
	},
	"a policy route that reroutes to an appliance": func(c *cluster) situation {
		red := custom(c)
		c.newSubnet("red-2", "10.31.0.0/24,fd00:10:31::/112", kubeovnv1.SubnetSpec{Vpc: "red"})
		c.run("shop", "a", "n1", "red-2")
		red.Spec.StaticRoutes = []*kubeovnv1.StaticRoute{{CIDR: "203.0.113.0/24", NextHopIP: "10.30.0.77"}} // OVN drops a packet without a route before it evaluates policies
		red.Spec.PolicyRoutes = []*kubeovnv1.PolicyRoute{{Priority: 32000, Match: "ip4", Action: kubeovnv1.PolicyRouteReroute, NextHopIP: "10.30.0.10"}}
		return situation{query: tcp(podEnd("shop", "a"), addrEnd("203.0.113.9"), 80), verdict: CannotTell, says: "pod bank/b gets the packet as next hop", one: true}
	},
	"a static route to an address that no pod has": func(c *cluster) situation {
		red := custom(c)
		red.Spec.StaticRoutes = []*kubeovnv1.StaticRoute{{CIDR: "203.0.113.0/24", NextHopIP: "10.30.0.77"}}
		return situation{query: tcp(podEnd("bank", "b"), addrEnd("203.0.113.9"), 80), verdict: Dropped, says: "where no pod has it", by: "Vpc red staticRoutes", one: true}
	},
	"an underlay subnet": func(c *cluster) situation {
		physical(c, kubeovnv1.SubnetSpec{})
		return situation{query: tcp(podEnd("shop", "a"), addrEnd("203.0.113.9"), 80), verdict: CannotTell, says: "its gateway is a router there", one: true}
	},
	"pods of an underlay subnet": func(c *cluster) situation {
		physical(c, kubeovnv1.SubnetSpec{})
		c.run("bank", "b", "n2", "under")
		return situation{query: tcp(podEnd("shop", "a"), podEnd("bank", "b"), 80), verdict: Delivered, says: "reaches pod bank/b"}
	},
	"an underlay subnet whose node has no interface": func(c *cluster) situation {
		network := physical(c, kubeovnv1.SubnetSpec{})
		c.run("bank", "b", "n2", "under")
		network.Status.ReadyNodes, network.Status.NotReadyNodes = []string{"n1"}, []string{"n2"}
		network.Status.Conditions = []kubeovnv1.ProviderNetworkCondition{{Node: "n2", Condition: kubeovnv1.Condition{Type: "Ready", Status: metav1.ConditionFalse, Message: "it has no interface eth7"}}}
		return situation{query: tcp(podEnd("shop", "a"), podEnd("bank", "b"), 80), verdict: Dropped, says: "it has no interface eth7", by: "ProviderNetwork net1"}
	},
	"a logical gateway": func(c *cluster) situation {
		physical(c, kubeovnv1.SubnetSpec{LogicalGateway: true})
		c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
		return situation{query: tcp(podEnd("shop", "a"), podEnd("bank", "b"), 80), verdict: Delivered, says: "reaches pod bank/b"}
	},
	"an interconnected underlay subnet": func(c *cluster) situation {
		physical(c, kubeovnv1.SubnetSpec{U2OInterconnection: true})
		c.run("bank", "b", "n2", kubeovnv1.DefaultSubnet)
		return situation{query: tcp(podEnd("shop", "a"), podEnd("bank", "b"), 80), verdict: CannotTell, says: "u2oInterconnection"}
	},
	"a neighbour": func(c *cluster) situation {
		q := twoPods(c)
		q.Protocol, q.Port = Neighbour, 0
		return situation{query: q, verdict: Delivered, says: "OVN answers for pod bank/b"}
	},
	"the gateway as a neighbour": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		return situation{query: Query{From: podEnd("shop", "a"), To: addrEnd("fd00:10:16::1"), Protocol: Neighbour}, verdict: Delivered, says: "the router of Vpc ovn-cluster answers", one: true}
	},
	"a ping of the gateway": func(c *cluster) situation {
		c.run("shop", "a", "n1", kubeovnv1.DefaultSubnet)
		return situation{query: Query{From: podEnd("shop", "a"), To: addrEnd("10.16.0.1"), Protocol: ICMP}, verdict: Delivered, says: "which answers", one: true}
	},
	"policies of another component": func(c *cluster) situation {
		q := twoPods(c)
		c.isolate("bank", "deny", "Ingress")
		c.Cluster.Spec.Policies.NetworkPolicies = v1alpha1.NetworkPoliciesIgnored
		return situation{query: q, verdict: Delivered}
	},
	"policies that may not be read": func(c *cluster) situation {
		q := twoPods(c)
		c.Unread = []Unread{{Resource: ResourcePolicies, Namespace: "bank", Verb: "list"}}
		return situation{query: q, verdict: CannotTell, says: "list networkpolicies.networking.k8s.io in namespace bank is not permitted"}
	},
	"a policy that drops whatever the others are": func(c *cluster) situation {
		q := twoPods(c)
		c.isolate("shop", "closed", "Egress")
		c.Unread = []Unread{{Resource: ResourcePolicies, Namespace: "bank", Verb: "list"}}
		return situation{query: q, verdict: Dropped, by: "NetworkPolicy shop/closed"}
	},
}

func TestVerdicts(t *testing.T) {
	for name, make := range allSituations() {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			s := make(c)
			a := Run(&c.Snapshot, s.query)
			if !s.one && len(a.Traces) != 2 {
				t.Errorf("%d families:\n%s", len(a.Traces), a.text())
			}
			found := false
			for i := range a.Traces {
				by := ""
				if o := a.Traces[i].DecidedBy; o != nil {
					by = strings.TrimSpace(o.String() + " " + o.Rule)
				}
				right := a.Traces[i].Verdict == s.verdict && by == s.by && says(a.Traces[i], s.says)
				found = found || right
				if !right && !s.one {
					t.Errorf("%s: %s by %q, want %s by %q with %q:\n%s", a.Traces[i].Family, a.Traces[i].Verdict, by, s.verdict, s.by, s.says, a.text())
				}
			}
			if !found {
				t.Errorf("want %s by %q with %q:\n%s", s.verdict, s.by, s.says, a.text())
			}
		})
	}
}

func says(t Trace, text string) bool {
	for _, s := range t.Steps {
		if strings.Contains(s.Text, text) {
			return true
		}
	}
	return text == ""
}
