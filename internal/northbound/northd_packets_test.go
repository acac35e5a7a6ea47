// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// packetTest sends datagrams between pods on node n1, through Open vSwitch's userspace datapath: `client` and `open` are not isolated, `server` is in the
// set "subjects".
type packetTest struct {
	*engine

	chassis *nbtest.Chassis
	sent    int
}

// Numbers of the pods for podOf.
var numberOf = map[string]byte{"client": 0, "server": 1, "open": 2}

func newPackets(t *testing.T) *packetTest {
	t.Helper()
	server := nbtest.Start(t)
	northd := server.Northd()
	p := &packetTest{engine: lead(t, server.Endpoint())}
	applyNetwork(p.engine)
	p.apply(translate.IsolationOwner(), translate.Isolation(translate.IsolationInputs{Nodes: []translate.PolicyNode{{Name: "n1"}}}))
	p.apply(translate.PodSetOwner("subjects"), translate.PodSet(translate.PodSetInputs{Name: "subjects", Subjects: true}))
	ports := map[string]string{}
	for name, n := range numberOf {
		in := translate.PodInputs{Name: name, Node: "n1", Subnet: "s1"}
		if name == "server" {
			in.Policy.Subjects = []string{"subjects"}
		}
		p.apply(pod(name), podOf(in, int(n)))
		ports[name+".ns"] = name // podOf uses the name as the UID
	}
	p.chassis = northd.Chassis("n1", ports)
	return p
}

// policy applies a policy on "subjects" with rules of a tier.
func (p *packetTest) policy(tier int, rules ...translate.PolicyRule) {
	p.t.Helper()
	owner := translate.NetworkPolicyOwner("ns", fmt.Sprint("tier-", tier))
	for i := range rules {
		rules[i].Key, rules[i].Direction, rules[i].Priority = fmt.Sprint("ingress/", i), translate.Ingress, 2000-i
	}
	p.apply(owner, translate.Policy(translate.PolicyInputs{Owner: owner, Title: owner.Name, Subjects: "subjects", Tier: tier, Rules: rules}))
}

// passes sends a datagram and reports whether all of it arrives. Datagrams with the same family, ports and pods are of one connection.
func (p *packetTest) passes(from, to string, family, source, port, size int) bool {
	p.t.Helper()
	p.chassis.Sync()
	send := func(to string, port, size int) (first, last []byte) {
		p.sent++
		first, last = fmt.Appendf(nil, "<first %d>", p.sent), fmt.Appendf(nil, "<last %d>", p.sent)
		p.chassis.Send(from+".ns", nbtest.Datagram{
			SrcMAC: net.HardwareAddr{2, 1, 0, 0, 0, 2 + numberOf[from]}, DstMAC: net.HardwareAddr{2, 1, 0, 0, 0, 2 + numberOf[to]},
			Src: netip.AddrPortFrom(p.address(from, family), uint16(source)), Dst: netip.AddrPortFrom(p.address(to, family), uint16(port)),
			Payload: slices.Concat(first, make([]byte, size-len(first)-len(last)), last),
		}.Frames()...)
		return first, last
	}
	first, last := send(to, port, size)
	control := "open"
	if from == "open" {
		control = "client"
	}
	_, next := send(control, 1, 100)
	p.chassis.Receives(control+".ns", next) // the switch forwards the frames of a port in order
	return p.chassis.Received(to+".ns", first) && p.chassis.Received(to+".ns", last)
}

func (p *packetTest) address(pod string, family int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf([]string{"10.16.0.%d", "fd00:16::%x"}[family], 2+numberOf[pod]))
}

// A policy of a later tier decides about a connection that an earlier tier passes. A change of the policy applies to the running connection at once, and
// to all its later packets.
func TestPoliciesOfLaterTiersDecideAboutRunningConnections(t *testing.T) {
	p := newPackets(t)
	p.policy(translate.TierAdmin, translate.PolicyRule{Any: true, Action: nb.ACLActionPass})
	for i, tier := range []int{translate.TierPolicy, translate.TierBaseline} {
		for _, action := range []nb.ACLAction{
			nb.ACLActionAllowRelated, nb.ACLActionDrop, nb.ACLActionAllowRelated, nb.ACLActionDrop,
		} {
			p.policy(tier, translate.PolicyRule{Any: true, Action: action})
			for family := range 2 {
				for packet := range 3 {
					if passes := p.passes("client", "server", family, 4000+i, 53, 100); passes != (action == nb.ACLActionAllowRelated) {
						t.Errorf("packet %d of family %d after the policy of tier %d became %s: passes is %t", packet, family, tier, action, passes)
					}
				}
			}
		}
		p.policy(tier)
	}
}

// TestFragmentsAndPorts pins what docs/operations/datapaths.md says about the userspace datapath.
func TestFragmentsAndPorts(t *testing.T) {
	p := newPackets(t)
	const small, large = 1000, 3000
	drop := translate.PolicyRule{Any: true, Action: nb.ACLActionDrop}
	port := []translate.PolicyPort{{Protocol: nb.LoadBalancerProtocolUDP, First: 53, Last: 53}}
	for _, tt := range []struct {
		name   string
		rules  []translate.PolicyRule
		passes [2][2]bool // by family: small and large datagrams
	}{
		{"a rule with a port", []translate.PolicyRule{{Any: true, Ports: port, Action: nb.ACLActionAllowRelated}, drop}, [2][2]bool{{true, false}, {true, false}}},
		{"a rule with a protocol", []translate.PolicyRule{ // later fragments of IPv6 have no protocol, either
			{Any: true, Ports: []translate.PolicyPort{{Protocol: nb.LoadBalancerProtocolUDP}}, Action: nb.ACLActionAllowRelated}, drop,
		}, [2][2]bool{{true, true}, {true, false}}},
		{"a rule without ports", []translate.PolicyRule{{Any: true, Action: nb.ACLActionAllowRelated}, drop}, [2][2]bool{{true, true}, {true, true}}},
		{"no rule", []translate.PolicyRule{drop}, [2][2]bool{}},
	} {
		p.policy(translate.TierPolicy, slices.Clone(tt.rules)...)
		for family := range 2 {
			for i, size := range []int{small, large} {
				if passes := p.passes("client", "server", family, 5000, 53, size); passes != tt.passes[family][i] {
					t.Errorf("%s, family %d, %d bytes: passes is %t", tt.name, family, size, passes)
				}
			}
		}
	}
	p.policy(translate.TierPolicy, drop)
	for family := range 2 {
		if !p.passes("server", "client", family, 53, 6000, small) || !p.passes("client", "server", family, 6000, 53, large) {
			t.Errorf("family %d: a large answer to an isolated pod does not arrive", family)
		}
	}
}
