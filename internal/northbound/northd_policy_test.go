// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// applyPolicy applies a policy on a set of subjects that allows ingress from a set of peers.
func applyPolicy(e *engine, name, subjects, peers string) {
	e.t.Helper()
	e.apply(translate.IsolationOwner(), translate.Isolation(translate.IsolationInputs{Nodes: []translate.PolicyNode{{Name: "n1"}}}))
	e.apply(translate.PodSetOwner(subjects), translate.PodSet(translate.PodSetInputs{Name: subjects, Subjects: true}))
	e.apply(translate.PodSetOwner(peers), translate.PodSet(translate.PodSetInputs{Name: peers, Numbers: []int32{0}}))
	owner := translate.NetworkPolicyOwner("ns", name)
	e.apply(owner, translate.Policy(translate.PolicyInputs{Owner: owner, Title: name, Subjects: subjects, Tier: translate.TierPolicy, Rules: []translate.PolicyRule{
		{
			Key: "ingress/0", Direction: translate.Ingress, Priority: translate.PriorityPolicyAllow, Action: "allow-related",
			Sets: []translate.PodSetPart{{Name: peers}},
		},
		{Key: "ingress/default", Direction: translate.Ingress, Priority: translate.PriorityPolicyDrop, Action: "drop", Any: true},
	}}))
}

// Packets of a pod to itself through a Service pass all policies. Packets of other pods with the same source do not.
func TestTheSourceOfHairpinsOpensNoPolicy(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	applyPolicy(e, "p", "subjects", "peers")
	isolated := translate.PodPolicy{Subjects: []string{"subjects"}}
	e.apply(pod("victim"), podOf(translate.PodInputs{Name: "victim", Node: "n1", Subnet: "s1", Policy: isolated}, 0))
	e.apply(pod("peer"), podOf(translate.PodInputs{Name: "peer", Node: "n1", Subnet: "s1", Policy: translate.PodPolicy{Peers: []translate.PodSetPart{{Name: "peers"}}}}, 1))
	e.apply(pod("near"), podOf(translate.PodInputs{Name: "near", Node: "n1", Subnet: "s1"}, 2))
	e.apply(pod("far"), podOf(translate.PodInputs{Name: "far", Node: "n2", Subnet: "s2"}, 3))
	northd.Await("the pods", func(sb *nbtest.Server) bool { return slices.Contains(portsOf(sb), "far.ns") })
	through := func(from, subnet, hardware, source string) bool {
		ip, to := "ip4", "10.16.0.2"
		if strings.Contains(source, ":") {
			ip, to = "ip6", "fd00:16::2"
		}
		gateway := "02:01:00:00:00:02" // the victim's own
		if subnet != "s1" {
			gateway = gatewayMAC(server, subnet)
		}
		out := northd.Trace(subnet, fmt.Sprintf(`inport == "%s.ns" && eth.src == %s && eth.dst == %s && %s.src == %s && %s.dst == %s && ip.ttl == 64 && udp.dst == 53`,
			from, hardware, gateway, ip, source, ip, to), "--ct=new", "--ct=new", "--ct=new", "--ct=new")
		return strings.Contains(out, `output("victim.ns")`)
	}
	if !through("peer", "s1", "02:01:00:00:00:03", "10.16.0.3") { // positive control
		t.Error("packets of a peer do not get through")
	}
	for _, source := range translate.HairpinSources {
		if through("near", "s1", "02:01:00:00:00:04", source.String()) {
			t.Errorf("a packet of a pod on the same switch with source %s gets through", source)
		}
		if through("far", "s2", "02:01:00:00:00:05", source.String()) {
			t.Errorf("a packet of a pod on another switch with source %s gets through", source)
		}
	}
}

// TestPodsOfPoliciesCostNorthdNoFullComputation: creation, deletion and relabelling of pods change only sets, except for the
// first and the last subject of a switch.
func TestPodsOfPoliciesCostNorthdNoFullComputation(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	applyPolicy(e, "p", "subjects", "peers")
	rows := func(i int, subnet, role string) (desired.Owner, []desired.Row) {
		in := translate.PodInputs{Name: fmt.Sprint("pod-", i), Node: "n1", Subnet: subnet}
		switch role {
		case "subject":
			in.Policy.Subjects = []string{"subjects"}
		case "peer":
			in.Policy.Peers = []translate.PodSetPart{{Name: "peers"}}
		}
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
	before := counts()
	for _, step := range []struct {
		what         string
		pod          int
		subnet, role string
		full         bool
	}{
		{"the first subject of a switch comes", 0, "s1", "subject", true},
		{"the second comes", 1, "s1", "subject", false},
		{"it becomes a peer", 1, "s1", "peer", false},
		{"it becomes a subject again", 1, "s1", "subject", false},
		{"the first peer of another switch comes", 2, "s2", "peer", false},
		{"it becomes none", 2, "s2", "", false},
		{"it becomes a peer again", 2, "s2", "peer", false},
		{"a subject becomes none", 1, "s1", "", false},
	} {
		e.apply(rows(step.pod, step.subnet, step.role))
		after := counts()
		if full := after != before; full != step.full {
			t.Errorf("%s: %d full computations", step.what, after-before)
		}
		before = after
	}
	// A port that changes, whatever changes, makes ovn-northd compare all address sets with SB.
	compared := northd.Recomputes("sync_to_sb_addr_set")
	for _, role := range []string{"", "peer"} {
		e.apply(rows(2, "s2", role))
		if counts(); northd.Recomputes("sync_to_sb_addr_set") != compared {
			t.Errorf("a pod that becomes %q: ovn-northd compares all address sets", role)
		}
	}
}
