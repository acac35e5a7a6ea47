// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// shape is what one more object costs: rows of the southbound database, which each chassis reads, and OpenFlow flows on each chassis that hosts a pod of the VPC.
type shape struct{ logicalFlows, sets, openFlows int }

// TestShapes counts what objects cost ovn-northd and every chassis. The numbers are exact and the same on each machine: a change of translators that changes one shows here what it costs in a
// cluster of N chassis, and updates docs/development/performance.md. Both families, except Services.
func TestShapes(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	chassis := applySubjects(e, northd, 1)
	counts := func() shape {
		flows := chassis.Flows()
		sb := northd.Southbound
		return shape{len(sb.Rows("Logical_Flow")), len(sb.Rows("Address_Set")) + len(sb.Rows("Port_Group")), flows}
	}
	type rows struct {
		owner desired.Owner
		rows  []desired.Row
	}
	remote := func(i int, policy translate.PodPolicy) rows {
		in := translate.PodInputs{Name: fmt.Sprint("remote-", i), Node: "n2", Subnet: "s1", Policy: policy}
		return rows{pod(in.Name), podOf(in, i)}
	}
	more := func(i byte, services bool) rows {
		name := fmt.Sprint("extra-", i)
		return rows{subnet(name), translate.Subnet(translate.SubnetInputs{
			Name: name, Vpc: kubeovnv1.DefaultVpc, Services: services,
			Gateways: []netip.Addr{netip.AddrFrom4([4]byte{10, 40, i, 1}), netip.MustParseAddr(fmt.Sprintf("fd00:40:%x::1", i))},
			CIDRs:    []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 40, i, 0}), 24), netip.MustParsePrefix(fmt.Sprintf("fd00:40:%x::/112", i))},
		})}
	}
	serviceWith := func(i, endpoints int) rows {
		in := serviceShape{ports: 1, endpoints: endpoints, addresses: 1}.inputs(fmt.Sprint("front-", i), 10+i)
		return rows{translate.ServiceOwner("ns", in.Service.Name), translate.Service(in)}
	}
	nodeOf := func(i byte) rows {
		name := fmt.Sprint("node-", i)
		return rows{node(name), translate.Node(translate.NodeInputs{
			Name: name, Vpc: kubeovnv1.DefaultVpc, Switch: "join", MAC: net.HardwareAddr{2, 0, 0, 0, 1, i},
			Addresses:   []netip.Addr{netip.AddrFrom4([4]byte{100, 64, 1, i}), netip.MustParseAddr(fmt.Sprintf("fd00:64::1:%x", i))},
			InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, 100 + i}), netip.MustParseAddr(fmt.Sprintf("2001:db8::1:%x", i))},
		})}
	}
	set := func(name string, in translate.PodSetInputs) rows {
		in.Name = name
		return rows{translate.PodSetOwner(name), translate.PodSet(in)}
	}
	policyOf := func(i int, rule translate.PolicyRule) rows {
		in := ruleFor(rule)
		in.Owner = translate.NetworkPolicyOwner("ns", fmt.Sprint("policy-", i))
		return rows{in.Owner, translate.Policy(in)}
	}
	isolation := func(nodes int) rows {
		in := translate.IsolationInputs{}
		for i := range nodes {
			in.Nodes = append(in.Nodes, translate.PolicyNode{Name: fmt.Sprint("n", i+1), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{100, 64, 2, byte(i + 1)}), netip.MustParseAddr(fmt.Sprintf("fd00:64::2:%x", i+1))}})
		}
		return rows{translate.IsolationOwner(), translate.Isolation(in)}
	}
	for _, tt := range []struct {
		name string
		// first is applied before the count, and more is counted.
		first, more []rows
		want        shape
	}{
		{"a pod on another node", []rows{remote(1, translate.PodPolicy{})}, []rows{remote(2, translate.PodPolicy{})}, shape{8, 0, 10}},
		{"a pod on another node that policies select", []rows{remote(1, translate.PodPolicy{Subjects: []string{"subjects"}})}, []rows{remote(2, translate.PodPolicy{Subjects: []string{"subjects"}})}, shape{8, 0, 10}},
		{"a subnet without Services", []rows{more(1, false)}, []rows{more(2, false)}, shape{46, 0, 190}},
		{"a subnet with Services", []rows{more(1, true)}, []rows{more(2, true)}, shape{46, 0, 247}},
		{"a node", []rows{nodeOf(1)}, []rows{nodeOf(2)}, shape{10, 2, 12}},
		{"a node whose pods policies select", []rows{isolation(2)}, []rows{isolation(3)}, shape{4, 0, 0}},
		{"a Service with 1 endpoint, 2 subnets", []rows{serviceWith(1, 1)}, []rows{serviceWith(2, 1)}, shape{2, 0, 7}},
		{"a Service with 4 endpoints, 2 subnets", []rows{serviceWith(1, 4)}, []rows{serviceWith(2, 4)}, shape{2, 0, 10}},
		{"a Service with 4 endpoints, 4 subnets", []rows{more(1, true), more(2, true), serviceWith(1, 4)}, []rows{serviceWith(2, 4)}, shape{2, 0, 16}},
		{"a group of pods that policies select", []rows{set("first", translate.PodSetInputs{Subjects: true})}, []rows{set("second", translate.PodSetInputs{Subjects: true})}, shape{0, 2, 0}},
		{"a group of peers", []rows{set("first", translate.PodSetInputs{Numbers: []int32{0}})}, []rows{set("second", translate.PodSetInputs{Numbers: []int32{0}})}, shape{0, 2, 0}},
		{"a policy that lets all in to a pod of the chassis", nil, []rows{policyOf(1, translate.PolicyRule{Any: true})}, shape{2, 0, 5}},
		{
			"a policy with three peers for a pod of the chassis",
			[]rows{
				set("peers", translate.PodSetInputs{Numbers: []int32{0}}), remote(1, translate.PodPolicy{Peers: []translate.PodSetPart{{Name: "peers"}}}),
				remote(2, translate.PodPolicy{Peers: []translate.PodSetPart{{Name: "peers"}}}), remote(3, translate.PodPolicy{Peers: []translate.PodSetPart{{Name: "peers"}}}),
			},
			[]rows{policyOf(1, translate.PolicyRule{Sets: []translate.PodSetPart{{Name: "peers"}}})}, shape{4, 0, 13},
		},
	} {
		for _, r := range tt.first {
			e.apply(r.owner, r.rows)
		}
		before := counts()
		for _, r := range tt.more {
			e.apply(r.owner, r.rows)
		}
		after := counts()
		got := shape{after.logicalFlows - before.logicalFlows, after.sets - before.sets, after.openFlows - before.openFlows}
		if got != tt.want {
			t.Errorf("%s costs %+v, want %+v", tt.name, got, tt.want)
		}
		for _, r := range append(tt.more, tt.first...) {
			switch r.owner {
			case translate.IsolationOwner():
				e.apply(r.owner, isolation(1).rows)
			default:
				e.apply(r.owner, nil)
			}
		}
	}
}
