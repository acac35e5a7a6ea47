// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"net/netip"
	"testing"

	"go4.org/netipx"

	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/testing/seed"
)

// applySubjects applies a network with pods of the set "subjects" on node n1, and starts the chassis of that node.
func applySubjects(e *engine, northd *nbtest.Northd, pods int) *nbtest.Chassis {
	e.t.Helper()
	applyNetwork(e)
	e.apply(translate.IsolationOwner(), translate.Isolation(translate.IsolationInputs{Nodes: []translate.PolicyNode{{Name: "n1"}}}))
	e.apply(translate.PodSetOwner("subjects"), translate.PodSet(translate.PodSetInputs{Name: "subjects", Subjects: true}))
	ports := map[string]string{}
	for i := range pods {
		in := translate.PodInputs{Name: fmt.Sprint("pod-", i), Node: "n1", Subnet: "s1"}
		in.Policy.Subjects = []string{"subjects"}
		e.apply(pod(in.Name), podOf(in, i))
		ports[in.Name+".ns"] = in.Name // podOf uses the name as the UID
	}
	return northd.Chassis("n1", ports)
}

// ruleFor completes a rule and returns a policy on "subjects" with only that rule.
func ruleFor(rule translate.PolicyRule) translate.PolicyInputs {
	rule.Key, rule.Direction, rule.Priority, rule.Action = "ingress/0", translate.Ingress, translate.PriorityPolicyAllow, "allow-related"
	return translate.PolicyInputs{
		Owner: translate.NetworkPolicyOwner("ns", "p"), Title: "p", Subjects: "subjects", Tier: translate.TierPolicy, Rules: []translate.PolicyRule{rule},
	}
}

// without returns the networks that cover a CIDR except some others.
func without(cidr string, except ...netip.Prefix) []netip.Prefix {
	var b netipx.IPSetBuilder
	b.AddPrefix(netip.MustParsePrefix(cidr))
	for _, p := range except {
		b.RemovePrefix(p)
	}
	set, err := b.IPSet()
	if err != nil {
		panic(err)
	}
	return set.Prefixes()
}

// hosts draws random single addresses.
func hosts(t testing.TB, n int) (v4, v6 []netip.Prefix) {
	t.Helper()
	random := seed.Rand(seed.New(t), 1)
	for range n {
		var b [16]byte
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		v4 = append(v4, netip.PrefixFrom(netip.AddrFrom4([4]byte(b[:4])), 32))
		v6 = append(v6, netip.PrefixFrom(netip.AddrFrom16(b), 128))
	}
	return v4, v6
}

// TestFlowsOfPolicyRules counts the flows that ovn-controller installs for rules. PolicyRule.Flows must not be less, since it
// bounds policies. The flows must grow with the sum of a rule's networks, sets and ports, not with their product.
func TestFlowsOfPolicyRules(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	const pods = 6
	chassis := applySubjects(e, northd, pods)
	e.apply(translate.PodSetOwner("peers"), translate.PodSet(translate.PodSetInputs{Name: "peers", Numbers: []int32{0, 80}}))
	for i := pods; i < 2*pods; i++ {
		in := translate.PodInputs{Name: fmt.Sprint("pod-", i), Node: "n2", Subnet: "s1"}
		in.Policy.Peers = []translate.PodSetPart{{Name: "peers"}, {Name: "peers", Number: 80}}
		e.apply(pod(in.Name), podOf(in, i))
	}
	ports := func(step int32, width int32, protocols ...string) []translate.PolicyPort {
		var all []translate.PolicyPort
		for _, protocol := range protocols {
			for i := range int32(25) {
				all = append(all, translate.PolicyPort{Protocol: protocol, First: 1000 + i*step, Last: 1000 + i*step + width})
			}
		}
		return all
	}
	v4, v6 := hosts(t, 100)
	peers := []translate.PodSetPart{{Name: "peers"}}
	before := chassis.Flows()
	for _, tt := range []struct {
		name string
		rule translate.PolicyRule
		max  int // 0: only the bound of Flows
	}{
		{"anyone", translate.PolicyRule{Any: true}, 0},
		{"7 hosts left out", translate.PolicyRule{Networks: without("0.0.0.0/0", v4[:7]...)}, 2*7*32 + 50},
		{"7 IPv6 hosts left out", translate.PolicyRule{Networks: without("::/0", v6[:7]...)}, 2*7*128 + 50},
		{"an IPv6 network with IPv4 in IPv6", translate.PolicyRule{Networks: without("::/0", netip.MustParsePrefix("::fffe:0:0/96"))}, 2*96 + 50},
		{"a set and networks", translate.PolicyRule{Sets: peers, Networks: v4}, 0},
		{"ports", translate.PolicyRule{Any: true, Ports: ports(7, 0, "tcp")}, 0},
		{"ports of two protocols", translate.PolicyRule{Any: true, Ports: ports(7, 0, "tcp", "udp")}, 0},
		{"ports and networks", translate.PolicyRule{Networks: v4, Ports: ports(7, 0, "tcp")}, 2*(100+25+pods) + 50},
		{"ports of three protocols and networks", translate.PolicyRule{Networks: v4, Ports: ports(7, 0, "tcp", "udp", "sctp")}, 2*3*(100+25+pods) + 50},
		{"ports, a range and networks", translate.PolicyRule{
			Networks: v4, Ports: append(ports(7, 0, "tcp"), translate.PolicyPort{Protocol: "tcp", First: 1, Last: 65534}),
		}, 2*(100+25+30+pods) + 50},
		{"ports of one protocol, all of another, and networks", translate.PolicyRule{
			Networks: v4, Ports: append(ports(7, 0, "tcp"), translate.PolicyPort{Protocol: "udp"}),
		}, 2*2*(100+25+pods) + 50},
		{"ranges of two protocols and networks", translate.PolicyRule{Networks: v4, Ports: ports(100, 37, "tcp", "udp")}, 0},
		{"a named port and both kinds of peers", translate.PolicyRule{
			Sets: peers, Networks: v6, To: []translate.PodSetPart{{Name: "peers", Number: 80}}, Ports: ports(1, 0, "tcp")[:1],
		}, 0},
		{"a named port and anyone", translate.PolicyRule{
			Any: true, To: []translate.PodSetPart{{Name: "peers", Number: 80}}, Ports: ports(1, 0, "tcp")[:1],
		}, 0},
	} {
		in := ruleFor(tt.rule)
		e.apply(in.Owner, translate.Policy(in))
		flows := chassis.Flows() - before
		t.Logf("%s: %d flows, estimated at %d", tt.name, flows, in.Rules[0].Flows())
		if flows == 0 || flows > in.Rules[0].Flows() || tt.max > 0 && flows > tt.max {
			t.Errorf("%s: %d flows, estimated at %d, want %d at most", tt.name, flows, in.Rules[0].Flows(), tt.max)
		}
	}
}
