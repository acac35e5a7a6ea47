// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// BenchmarkLabels changes the label of one of many pods, which a policy names as a peer or is about, where there are no other policies
// and where there are 500, and reports what that costs the database and ovn-northd.
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
		flush := func(i int) { // until northd has done all that was before
			e.apply(rows(i, translate.PodPolicy{}))
			name := fmt.Sprintf("pod-%d.ns", i)
			northd.Await(name, func(sb *nbtest.Server) bool { return slices.Contains(portsOf(sb), name) })
		}
		flush(pods)
		sent, spent := transactions(b), northdTime(b, northd)
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
		flush(pods + 1)
		b.ReportMetric((transactions(b)-sent-1)/changes, "transactions/label")
		b.ReportMetric(float64((northdTime(b, northd)-spent).Microseconds())/1000/changes, "northd-ms/label")
		b.ReportMetric(float64(northd.Recomputes("northd")+northd.Recomputes("lflow")-full), "full-computations")
		e.stop()
		northd.Stop()
		server.Stop()
		b.StartTimer()
	}
}
