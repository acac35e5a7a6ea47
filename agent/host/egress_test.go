// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/gateway"
)

func TestPlanOfAGateway(t *testing.T) {
	const dual = "10.16.0.0/16,fd00:10:16::/112"
	centralized := func(nodes string) func(*v1.SubnetSpec) {
		return func(s *v1.SubnetSpec) {
			s.GatewayType, s.GatewayNode, s.NATOutgoing = v1.GatewayCentralized, nodes, true
		}
	}
	external := func(s *v1.SubnetSpec) {
		s.ExternalEgressGateway, s.PolicyRoutingPriority, s.PolicyRoutingTableID = "192.0.2.254,2001:db8::fe", 100, 200
	}
	both := func(changes ...func(*v1.SubnetSpec)) func(*v1.SubnetSpec) {
		return func(s *v1.SubnetSpec) {
			for _, change := range changes {
				change(s)
			}
		}
	}
	noNAT := func(s *v1.SubnetSpec) { s.NATOutgoing = false }
	v4, v6 := netip.MustParsePrefix("10.16.0.0/16"), netip.MustParsePrefix("fd00:10:16::/112")
	externals := []External{
		{v4, netip.MustParseAddr("192.0.2.254"), 100, 200}, {v6, netip.MustParseAddr("2001:db8::fe"), 100, 200},
	}
	younger := func(s v1.Subnet) v1.Subnet {
		s.CreationTimestamp = metav1.NewTime(time.Unix(1000, 0))
		return s
	}
	for name, c := range map[string]struct {
		subnets  []v1.Subnet
		egress   Egress
		nat      []SourceNAT
		policies []Policy
	}{
		"none":            {subnets: []v1.Subnet{testSubnet("a", dual, nil)}},
		"by name":         {subnets: []v1.Subnet{testSubnet("a", dual, centralized("n2,n1"))}, egress: Egress{Gateway: true}},
		"of another node": {subnets: []v1.Subnet{testSubnet("a", dual, centralized("n2:192.0.2.7"))}},
		"of another VPC":  {subnets: []v1.Subnet{testSubnet("a", dual, both(centralized("n1"), func(s *v1.SubnetSpec) { s.Vpc = "v" }))}},
		"by label":        {subnets: []v1.Subnet{testSubnet("a", dual, both(centralized(""), selector("edge")))}, egress: Egress{Gateway: true}},
		"not by label":    {subnets: []v1.Subnet{testSubnet("a", dual, both(centralized(""), selector("core")))}},
		"cannot be read":  {subnets: []v1.Subnet{testSubnet("a", dual, centralized("n1:x"))}},
		"with NAT by policy": {
			subnets: []v1.Subnet{testSubnet("a", dual, func(s *v1.SubnetSpec) {
				s.NATOutgoing = true
				s.NATOutgoingPolicyRules = []v1.NATOutgoingPolicyRule{{Action: "forward", Match: v1.NATOutgoingPolicyMatch{DstIPs: "192.0.2.9"}}}
			})},
			policies: []Policy{{"a", prefixes("10.16.0.0/16", "fd00:10:16::/112"), []gateway.NATRule{{Destinations: prefixes("192.0.2.9/32"), Forward: true}}}},
		},
		"with addresses of its own": {
			subnets: []v1.Subnet{testSubnet("a", dual, centralized("n1:192.0.2.7,n1:2001:db8::7,n2:192.0.2.8"))},
			egress:  Egress{Gateway: true, Claims: addresses("192.0.2.7", "2001:db8::7")},
			nat:     []SourceNAT{{v4, netip.MustParseAddr("192.0.2.7")}, {v6, netip.MustParseAddr("2001:db8::7")}},
		},
		"with an address that another node has, too": {
			subnets: []v1.Subnet{testSubnet("a", "10.16.0.0/16", centralized("n1:192.0.2.7,n2:192.0.2.7"))},
			egress:  Egress{Gateway: true}, nat: []SourceNAT{{v4, netip.MustParseAddr("192.0.2.7")}},
		},
		"with an address and without NAT": {
			subnets: []v1.Subnet{testSubnet("a", dual, both(centralized("n1:192.0.2.7"), noNAT))}, egress: Egress{Gateway: true},
		},
		"to a router outside": {
			subnets: []v1.Subnet{testSubnet("a", dual, both(centralized("n1"), noNAT, external))}, egress: Egress{Gateway: true, External: externals},
		},
		"to a router outside, by another node":        {subnets: []v1.Subnet{testSubnet("a", dual, both(centralized("n2"), noNAT, external))}},
		"to a router outside, of distributed subnets": {subnets: []v1.Subnet{testSubnet("a", dual, external)}, egress: Egress{External: externals}},
		"to a router outside, with NAT":               {subnets: []v1.Subnet{testSubnet("a", dual, both(centralized("n1"), external))}, egress: Egress{Gateway: true}},
		"the older one has the table": {
			subnets: []v1.Subnet{younger(testSubnet("a", "10.17.0.0/16", external)), testSubnet("z", dual, external)}, egress: Egress{External: externals},
		},
		"the older one has the addresses": {
			subnets: []v1.Subnet{younger(testSubnet("a", "10.16.3.0/24", external)), testSubnet("z", "10.16.0.0/16", nil)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			node := testNode("192.0.2.1", "2001:db8::1")
			node.Labels = map[string]string{"role": "edge"}
			plan, err := NewPlan(testJoin(2), node, nil, c.subnets, nil)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(plan.Egress, c.egress) || !reflect.DeepEqual(plan.SourceNAT, c.nat) || !reflect.DeepEqual(plan.Policies, c.policies) {
				t.Errorf("got %+v, %v, %v\nwant %+v, %v, %v", plan.Egress, plan.SourceNAT, plan.Policies, c.egress, c.nat, c.policies)
			}
		})
	}
}

func TestPlanOfEgressAddresses(t *testing.T) {
	on := func(node, standby string, addresses ...string) v1.EgressAddress {
		return v1.EgressAddress{Status: v1.EgressAddressStatus{Node: node, Standby: standby, Addresses: addresses}}
	}
	for name, c := range map[string]struct {
		list      []v1.EgressAddress
		gateway   bool
		forwarded []netip.Addr
		elsewhere []netip.Addr
	}{
		"none":                        {},
		"of another node":             {list: []v1.EgressAddress{on("n2", "n3", "192.0.2.7")}, elsewhere: addresses("192.0.2.7")},
		"the standby has no address":  {list: []v1.EgressAddress{on("n2", "n1", "192.0.2.7")}, gateway: true, elsewhere: addresses("192.0.2.7")},
		"both families":               {list: []v1.EgressAddress{on("n1", "n2", "2001:db8::7", "192.0.2.7")}, gateway: true, forwarded: addresses("192.0.2.7", "2001:db8::7")},
		"two with an address":         {list: []v1.EgressAddress{on("n1", "", "192.0.2.7"), on("n1", "", "192.0.2.7")}, gateway: true, forwarded: addresses("192.0.2.7")},
		"an address of the node":      {list: []v1.EgressAddress{on("n1", "", "192.0.2.1", "192.0.2.7")}, gateway: true, forwarded: addresses("192.0.2.7")},
		"an address that it claims":   {list: []v1.EgressAddress{on("n1", "", "192.0.2.9", "192.0.2.7")}, gateway: true, forwarded: addresses("192.0.2.7")},
		"addresses that are not such": {list: []v1.EgressAddress{on("n1", "", "x", "127.0.0.1", "fe80::1", "0.0.0.0", "224.0.0.1")}, gateway: true},
		"without addresses":           {list: []v1.EgressAddress{on("n1", "")}, gateway: true},
		"without nodes":               {list: []v1.EgressAddress{on("", "")}},
	} {
		t.Run(name, func(t *testing.T) {
			plan := Plan{Egress: Egress{Claims: addresses("192.0.2.9")}}
			plan.addForwarded("n1", addresses("192.0.2.1", "2001:db8::1"), c.list)
			var routes []Route
			for _, a := range c.forwarded {
				routes = append(routes, Route{To: netip.PrefixFrom(a, a.BitLen())})
			}
			if plan.Gateway != c.gateway || !reflect.DeepEqual(plan.Forwarded, c.forwarded) || !reflect.DeepEqual(plan.Elsewhere, c.elsewhere) || len(plan.Routes) != len(routes) {
				t.Errorf("got %+v and %+v", plan.Egress, plan.Routes)
			}
			for _, route := range routes {
				if !slices.Contains(plan.Routes, route) {
					t.Errorf("the routes %+v lack %+v", plan.Routes, route)
				}
			}
		})
	}
}

func TestSubnetsWithAllTrafficTranslated(t *testing.T) {
	nat := func(change func(*v1.SubnetSpec)) func(*v1.SubnetSpec) {
		return func(s *v1.SubnetSpec) {
			s.NATOutgoing, s.GatewayType, s.GatewayNode = true, v1.GatewayCentralized, "n2"
			change(s)
		}
	}
	plan, err := NewPlan(testJoin(2), testNode("192.0.2.1"), nil, []v1.Subnet{
		testSubnet("all", "10.17.0.0/24,fd00:10:17::/112", nat(func(*v1.SubnetSpec) {})),
		testSubnet("some", "10.18.0.0/24", nat(func(s *v1.SubnetSpec) {
			s.NATOutgoingPolicyRules = []v1.NATOutgoingPolicyRule{{Action: v1.NATOutgoingPolicyForward}}
		})),
		testSubnet("none", "10.19.0.0/24", nat(func(s *v1.SubnetSpec) { s.NATOutgoing = false })),
		testSubnet("distributed", "10.20.0.0/24", nat(func(s *v1.SubnetSpec) { s.GatewayType = v1.GatewayDistributed })),
	}, nil)
	if want := prefixes("10.17.0.0/24", "100.64.0.0/16", "fd00:10:17::/112", "fd00:100:64::/112"); err != nil || !reflect.DeepEqual(plan.Central, want) {
		t.Errorf("got %v, %v, want %v", plan.Central, err, want)
	}
}

func selector(role string) func(*v1.SubnetSpec) {
	return func(s *v1.SubnetSpec) {
		s.GatewayNodeSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"role": role}}}
	}
}
