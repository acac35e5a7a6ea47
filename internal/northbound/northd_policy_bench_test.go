// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// BenchmarkLabels changes the label of one of many pods, which a policy selects as a peer or as a subject, without other
// policies and with 500. It reports the cost for the database and ovn-northd.
func BenchmarkLabels(b *testing.B) {
	for _, policies := range []int{1, 500} {
		for _, role := range []string{"peer", "subject"} {
			b.Run(fmt.Sprintf("%s under %d policies", role, policies), func(b *testing.B) { benchmarkLabels(b, policies, role) })
		}
	}
}

func benchmarkLabels(b *testing.B, policies int, role string) {
	const pods, changes = 1000, 100
	for b.Loop() {
		b.StopTimer()
		server := nbtest.Start(b)
		e := lead(b, server.Endpoint())
		applyNetwork(e)
		for i := range policies {
			applyPolicy(e, fmt.Sprint("p", i), fmt.Sprint("subjects", i), fmt.Sprint("peers", i))
		}
		rows := func(i int, in translate.PodPolicy) (desired.Owner, []desired.Row) {
			name := fmt.Sprint("pod-", i)
			return pod(name), podOf(translate.PodInputs{Name: name, Node: fmt.Sprint("n", i%2+1), Subnet: "s1", Policy: in}, i)
		}
		in := func(i int) translate.PodPolicy {
			return translate.PodPolicy{
				Subjects: []string{fmt.Sprint("subjects", i%policies)}, Peers: []translate.PodSetPart{{Name: fmt.Sprint("peers", i%policies)}},
			}
		}
		for i := range pods {
			e.apply(rows(i, in(i)))
		}
		northd := server.Northd()
		northd.Settled()
		sent, spent := transactions(b), processTime(b, northd)
		full := northd.Recomputes("northd") + northd.Recomputes("lflow")
		b.StartTimer()
		for i := range changes {
			changed := translate.PodPolicy{Peers: in(i).Peers}
			if role == "peer" {
				changed = translate.PodPolicy{Subjects: in(i).Subjects}
			}
			e.apply(rows(i, changed))
		}
		b.StopTimer()
		northd.Settled()
		b.ReportMetric((transactions(b)-sent)/changes, "transactions/label")
		b.ReportMetric(float64((processTime(b, northd)-spent).Microseconds())/1000/changes, "northd-ms/label")
		b.ReportMetric(float64(northd.Recomputes("northd")+northd.Recomputes("lflow")-full), "full-computations")
		e.stop()
		northd.Stop()
		server.Stop()
		b.StartTimer()
	}
}

// BenchmarkNetworks applies a policy that allows a list of addresses, and policies that allow all addresses except some. It
// reports the cost of one for ovn-controller on a node with one of its pods.
func BenchmarkNetworks(b *testing.B) {
	v4, v6 := hosts(b, 4096)
	b.Run("4096 addresses", func(b *testing.B) { benchmarkNetworks(b, v4) })
	for _, n := range []int{1, 7, 30, 150} {
		b.Run(fmt.Sprintf("all but %d", n), func(b *testing.B) { benchmarkNetworks(b, without("0.0.0.0/0", v4[:n]...)) })
	}
	b.Run("all IPv6 but 30", func(b *testing.B) { benchmarkNetworks(b, without("::/0", v6[:30]...)) })
}

func benchmarkNetworks(b *testing.B, networks []netip.Prefix) {
	server := nbtest.Start(b)
	northd := server.Northd()
	e := lead(b, server.Endpoint())
	chassis := applySubjects(e, northd, 1)
	in := ruleFor(translate.PolicyRule{Networks: networks})
	before, flows, spent := chassis.Flows(), 0, time.Duration(0)
	for b.Loop() {
		start := processTime(b, chassis)
		e.apply(in.Owner, translate.Policy(in))
		flows = chassis.Flows() - before
		b.StopTimer()
		spent += processTime(b, chassis) - start
		e.apply(in.Owner, nil)
		chassis.Flows()
		b.StartTimer()
	}
	b.ReportMetric(float64(len(networks)), "networks")
	b.ReportMetric(float64(flows), "flows")
	b.ReportMetric(float64(spent.Milliseconds())/float64(b.N), "ovn-controller-ms")
}
