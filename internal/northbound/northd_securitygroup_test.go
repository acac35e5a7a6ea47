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

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// rulesFor returns a rule of each family.
func rulesFor(direction translate.Direction, priority int, action nb.ACLAction, remotes, protocol string, first, last int) []translate.SecurityGroupRule {
	var rules []translate.SecurityGroupRule
	for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
		rules = append(rules, translate.SecurityGroupRule{
			Key: fmt.Sprintf("%s/%d/%s", direction, priority, family), Direction: direction, Priority: priority, Action: action, Family: family,
			RemoteSet: remotes, Protocol: protocol, Ports: translate.PortRange{First: first, Last: last},
		})
	}
	return rules
}

// applyGroups applies security groups. Each has a set of subjects with its name, and a set of their addresses,
// `<name>-addresses`.
func applyGroups(e *engine) {
	e.t.Helper()
	const in, out = translate.Ingress, translate.Egress
	allow, drop, pass := nb.ACLActionAllowRelated, nb.ACLActionDrop, nb.ACLActionPass
	everywhere := rulesFor(out, 16384, allow, "", "", 0, 0)
	for _, sg := range []translate.SecurityGroupInputs{
		{Name: "web", Tier: translate.TierPolicy, Rules: slices.Concat(
			rulesFor(in, 10, allow, "friends-addresses", "tcp", 80, 89), rulesFor(in, 9, drop, "", "tcp", 85, 85))},
		{Name: "friends", Same: "friends-addresses", Tier: translate.TierPolicy, Rules: slices.Concat(
			everywhere, rulesFor(out, 16383, drop, "", "tcp", 99, 99))},
		{Name: "passing", Tier: translate.TierPolicy, Rules: slices.Concat(everywhere, rulesFor(in, 1, pass, "", "tcp", 80, 81))},
		{Name: "last", Tier: translate.TierBaseline, Rules: slices.Concat(everywhere, rulesFor(in, 1, allow, "", "tcp", 80, 80))},
	} {
		sg.Subjects = sg.Name
		e.apply(translate.PodSetOwner(sg.Name), translate.PodSet(translate.PodSetInputs{Name: sg.Name, Subjects: true}))
		e.apply(translate.PodSetOwner(sg.Name+"-addresses"), translate.PodSet(translate.PodSetInputs{Name: sg.Name + "-addresses", Numbers: []int32{0}}))
		e.apply(translate.SecurityGroupOwner(sg.Name), translate.SecurityGroup(sg))
	}
	e.apply(translate.PodSetOwner("isolated"), translate.PodSet(translate.PodSetInputs{Name: "isolated", Subjects: true}))
	np := translate.NetworkPolicyOwner("ns", "np")
	e.apply(np, translate.Policy(translate.PolicyInputs{Owner: np, Title: "np", Subjects: "isolated", Tier: translate.TierPolicy, Rules: []translate.PolicyRule{{
		Key: "default", Direction: in, Priority: translate.PriorityPolicyDrop, Action: drop, Any: true,
	}}}))
}

// TestWhatSecurityGroupsLetThrough checks with ovn-trace which packets pass between pods of groups of both tiers.
func TestWhatSecurityGroupsLetThrough(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	e.apply(translate.SubnetOwner("s"), translate.Subnet(translate.SubnetInputs{
		Name: "s", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.30.0.0/24"), netip.MustParsePrefix("fd00:30::/64")},
		Gateways: []netip.Addr{netip.MustParseAddr("10.30.0.1"), netip.MustParseAddr("fd00:30::1")},
	}))
	e.apply(translate.IsolationOwner(), translate.Isolation(translate.IsolationInputs{Grouped: true}))
	applyGroups(e)
	first, last := []int{translate.TierPolicy, translate.TierBaseline}, []int{translate.TierBaseline}
	pods := map[string]translate.PodPolicy{
		"none":          {},
		"open":          {},
		"web":           {Subjects: []string{"web"}, Grouped: first},
		"friend":        {Subjects: []string{"friends"}, Grouped: first},
		"other-friend":  {Subjects: []string{"friends"}, Grouped: first},
		"last":          {Subjects: []string{"last"}, Grouped: last},
		"passing":       {Subjects: []string{"passing"}, Grouped: first},
		"passing-last":  {Subjects: []string{"last", "passing"}, Grouped: first},
		"unknown":       {Grouped: first},
		"last-unknown":  {Subjects: []string{"last"}, Grouped: first},
		"last-isolated": {Subjects: []string{"isolated", "last"}, Grouped: last},
		"web-isolated":  {Subjects: []string{"isolated", "web"}, Grouped: first},
	}
	names := slices.Sorted(maps.Keys(pods))
	address := func(name string) []netip.Addr {
		i := slices.Index(names, name) + 10
		return []netip.Addr{netip.MustParseAddr(fmt.Sprint("10.30.0.", i)), netip.MustParseAddr(fmt.Sprint("fd00:30::", i))}
	}
	hardware := func(name string) net.HardwareAddr {
		return net.HardwareAddr{2, 0, 0, 0, 0, byte(slices.Index(names, name))}
	}
	for _, name := range names {
		policy := pods[name]
		for _, s := range policy.Subjects {
			if s != "isolated" {
				policy.Peers = append(policy.Peers, translate.PodSetPart{Name: s + "-addresses"})
			}
		}
		e.apply(pod(name), translate.Pod(translate.PodInputs{
			Namespace: "ns", Name: name, Vpc: "elsewhere", Subnet: "s", MAC: hardware(name), Addresses: address(name), Policy: policy,
		}))
	}
	northd.Await("the ports", func(sb *nbtest.Server) bool { return slices.Contains(portsOf(sb), names[len(names)-1]+".ns") })

	for _, tt := range []struct {
		from, to, rest string
		through        bool
	}{
		{"none", "open", "tcp.dst == 80", true},
		{"friend", "web", "tcp.dst == 80", true},
		{"friend", "web", "tcp.dst == 89", true},
		{"friend", "web", "tcp.dst == 85", false}, // the rule with the lower number takes precedence
		{"friend", "web", "udp.dst == 80", false},
		{"none", "web", "tcp.dst == 80", false},
		{"web", "none", "tcp.dst == 80", false}, // it has no rule for egress
		{"friend", "none", "tcp.dst == 80", true},
		{"friend", "none", "tcp.dst == 99", false},
		{"friend", "other-friend", "udp.dst == 53", true}, // of the same group
		{"none", "friend", "udp.dst == 53", false},
		{"none", "last", "tcp.dst == 80", true}, // its groups are in tier 1 only
		{"none", "last", "tcp.dst == 81", false},
		{"last", "none", "tcp.dst == 81", true},
		{"none", "passing", "tcp.dst == 80", false}, // there is no group of tier 1 to pass to
		{"none", "passing-last", "tcp.dst == 80", true},
		{"none", "passing-last", "tcp.dst == 81", false},
		{"none", "unknown", "tcp.dst == 80", false},
		{"unknown", "none", "tcp.dst == 80", false},
		{"none", "last-unknown", "tcp.dst == 80", false},
		{"none", "last-isolated", "tcp.dst == 80", false}, // NetworkPolicies take precedence over tier 1
		{"friend", "web-isolated", "tcp.dst == 80", true}, // and tier 0 over NetworkPolicies
		{"none", "unknown", "ip.proto == 112", true},
	} {
		for family, ip := range []string{"ip4", "ip6"} {
			packet := fmt.Sprintf(`inport == "%s.ns" && eth.src == %s && eth.dst == %s && %s.src == %s && %s.dst == %s && ip.ttl == 64 && %s`,
				tt.from, hardware(tt.from), hardware(tt.to), ip, address(tt.from)[family], ip, address(tt.to)[family], tt.rest)
			out := northd.Trace("s", packet, "--ct=new", "--ct=new")
			if got := strings.Contains(out, `output("`+tt.to+`.ns")`); got != tt.through {
				t.Errorf("%s from %s to %s gets through: %t, in %s\n%s", tt.rest, tt.from, tt.to, got, ip, out)
			}
		}
	}
}

// TestPodsInSecurityGroupsCostNorthdNoFullComputation: creation and deletion of pods change only sets, except for the first and
// the last pod of a switch in a group.
func TestPodsInSecurityGroupsCostNorthdNoFullComputation(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	e.apply(translate.IsolationOwner(), translate.Isolation(translate.IsolationInputs{Grouped: true}))
	applyGroups(e)
	in := translate.PodPolicy{
		Subjects: []string{"friends"}, Peers: []translate.PodSetPart{{Name: "friends-addresses"}},
		Grouped: []int{translate.TierPolicy, translate.TierBaseline},
	}
	rows := func(i int, policy translate.PodPolicy) (desired.Owner, []desired.Row) {
		in := translate.PodInputs{Name: fmt.Sprint("pod-", i), Node: "n1", Subnet: "s1", Policy: policy}
		return pod(in.Name), podOf(in, i)
	}
	counts := func() int {
		northd.Settled()
		n := 0
		for _, node := range costly {
			n += northd.Recomputes(node)
		}
		return n
	}
	e.apply(rows(0, in)) // the first pod of the switch in a group
	before := counts()
	for i, policy := range []translate.PodPolicy{in, {}, in, {}} {
		e.apply(rows(1, policy))
		if after := counts(); after != before {
			t.Errorf("change %d: %d full computations", i, after-before)
			before = after
		}
	}
}

// TestAChangeOfTierDropsNothing: in each state of the group and its pod during the change, traffic that both tiers allow
// passes, and no other.
func TestAChangeOfTierDropsNothing(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	e.apply(translate.IsolationOwner(), translate.Isolation(translate.IsolationInputs{Grouped: true}))
	for _, set := range []string{"first", "last"} {
		e.apply(translate.PodSetOwner(set), translate.PodSet(translate.PodSetInputs{Name: set, Subjects: true}))
	}
	rulesOn := func(set string) {
		tier := map[string]int{"first": translate.TierPolicy, "last": translate.TierBaseline}[set]
		e.apply(translate.SecurityGroupOwner("g"), translate.SecurityGroup(translate.SecurityGroupInputs{
			Name: "g", Subjects: set, Tier: tier, Rules: rulesFor(translate.Ingress, 1, nb.ACLActionAllowRelated, "", "tcp", 80, 80),
		}))
	}
	podIn := func(tiers []int, sets ...string) {
		in := translate.PodInputs{Name: "web", Node: "n1", Subnet: "s1", Policy: translate.PodPolicy{Subjects: sets, Grouped: tiers}}
		e.apply(pod("web"), podOf(in, 0))
	}
	e.apply(pod("client"), podOf(translate.PodInputs{Name: "client", Node: "n1", Subnet: "s1"}, 1))
	both, last := []int{translate.TierPolicy, translate.TierBaseline}, []int{translate.TierBaseline}
	rulesOn("first")
	podIn(both, "first")
	for i, step := range []func(){
		func() {},
		func() { podIn(last, "first", "last") }, func() { rulesOn("last") }, func() { podIn(last, "last") }, // to tier 1
		func() { podIn(last, "first", "last") }, func() { rulesOn("first") }, func() { podIn(both, "first") }, // and back
	} {
		step()
		marker := fmt.Sprint("marker-", i)
		e.apply(pod(marker), podOf(translate.PodInputs{Name: marker, Node: "n2", Subnet: "s2"}, 100+i))
		northd.Await(marker, func(sb *nbtest.Server) bool { return slices.Contains(portsOf(sb), marker+".ns") })
		for port, through := range map[int]bool{80: true, 81: false} {
			for ip, addresses := range map[string][2]string{"ip4": {"10.16.0.3", "10.16.0.2"}, "ip6": {"fd00:16::3", "fd00:16::2"}} {
				out := northd.Trace("s1", fmt.Sprintf(
					`inport == "client.ns" && eth.src == 02:01:00:00:00:03 && eth.dst == 02:01:00:00:00:02 && %s.src == %s && %s.dst == %s && ip.ttl == 64 && tcp.dst == %d`,
					ip, addresses[0], ip, addresses[1], port), "--ct=new", "--ct=new")
				if got := strings.Contains(out, `output("web.ns")`); got != through {
					t.Errorf("step %d: port %d gets through: %t, in %s\n%s", i, port, got, ip, out)
				}
			}
		}
	}
}
