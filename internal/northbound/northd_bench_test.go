// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// BenchmarkNorthd adds pods to a network with existing pods, two at a time and 250 per second, and reports ovn-northd's cost of
// each.
func BenchmarkNorthd(b *testing.B) {
	for _, there := range []int{1000, 5000} {
		for _, backoff := range []string{"0", "300"} {
			b.Run(fmt.Sprintf("%d ports, backoff %s ms", there, backoff), func(b *testing.B) { benchmarkNorthd(b, there, backoff) })
		}
	}
}

func benchmarkNorthd(b *testing.B, there int, backoff string) {
	const pods = 500
	for b.Loop() {
		b.StopTimer()
		server := nbtest.Start(b)
		e := lead(b, server.Endpoint())
		server.Transact(nbtest.Op{"op": "update", "table": "NB_Global", "where": []any{}, "row": map[string]any{
			"options": nbtest.Map(map[string]string{"northd-backoff-interval-ms": backoff}),
		}})
		applyNetwork(e)
		rows := func(name string) []desired.Row {
			var i int
			if _, err := fmt.Sscanf(name, "pod-%d", &i); err != nil {
				b.Error(err)
			}
			return podOf(translate.PodInputs{Name: name, Node: fmt.Sprint("n", i%2+1), Subnet: fmt.Sprint("s", i/2%2+1)}, i)
		}
		names := podNames(there + pods)
		e.applyAll(names[:there], rows)
		northd := server.Northd()
		await := func(n int) {
			northd.Await("ports", func(sb *nbtest.Server) bool { return len(sb.Rows("Port_Binding")) >= n })
		}
		await(there)
		northd.Settled()
		ports := len(northd.Southbound.Rows("Port_Binding"))
		sent, spent := transactions(b), processTime(b, northd)
		full := northd.Recomputes("northd") + northd.Recomputes("lflow")
		b.StartTimer()
		e.spread(2, 8*time.Millisecond, names[there:], rows)
		b.StopTimer()
		await(ports + pods)
		b.ReportMetric(float64((processTime(b, northd)-spent).Microseconds())/1000/pods, "northd-ms/pod")
		b.ReportMetric((transactions(b)-sent)/pods, "transactions/pod")
		b.ReportMetric(float64(northd.Recomputes("northd")+northd.Recomputes("lflow")-full), "full-computations")
		e.stop()
		northd.Stop()
		server.Stop()
		b.StartTimer()
	}
}

// processTime is the CPU time of ovn-northd or ovn-controller so far (proc_pid_stat(5); a tick is 10 ms).
func processTime(b *testing.B, process interface{ PID() int }) time.Duration {
	b.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process.PID()))
	if err != nil {
		b.Fatal(err)
	}
	fields := bytes.Fields(content[bytes.LastIndexByte(content, ')')+1:])
	var ticks int
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(string(field))
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
