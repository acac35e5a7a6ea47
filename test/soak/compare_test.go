// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// dump is the content of a northbound database, by table and UUID.
type dump map[string]map[string]nbtest.Row

// global is the key of the only row of NB_Global in a dump, because its UUID differs between databases.
const global = "global"

// dumpOf reads a database. Of NB_Global it keeps only the options: the other columns depend on the databases and on the life of the
// controller.
func dumpOf(database *nbtest.Server) dump {
	d := dump(database.Dump())
	for _, row := range d[nb.NBGlobalTable] {
		d[nb.NBGlobalTable] = map[string]nbtest.Row{global: {"options": row["options"]}}
	}
	delete(d, nb.ConnectionTable)
	delete(d, nb.SSLTable)
	return dump(nbtest.WithoutIncarnations(d))
}

// TestEveryColumnIsCompared checks that the comparison covers every column, because an error in a column that is left out would not
// be found.
func TestEveryColumnIsCompared(t *testing.T) {
	database := nbtest.Start(t)
	for _, table := range []string{nb.LogicalSwitchTable, nb.LogicalRouterTable, nb.LoadBalancerTable, nb.AddressSetTable, nb.PortGroupTable} {
		database.Transact(nbtest.Op{"op": "insert", "table": table, "row": map[string]any{"name": "a"}})
	}
	for table, rows := range dumpOf(database) {
		for _, row := range rows {
			for column := range nb.Schema().Table(table).Columns {
				if _, ok := row[column]; !ok && table != nb.NBGlobalTable {
					t.Errorf("%s.%s is not read", table, column)
				}
			}
		}
	}
	of := func(table, column, value string) dump {
		row := nbtest.Row{}
		for name := range nb.Schema().Table(table).Columns {
			row[name] = "same"
		}
		row[column] = value
		return dump{table: {"uuid": row}}
	}
	for table, schema := range nb.Schema().Tables {
		for column := range schema.Columns {
			if diff := differs(of(table, column, "one"), of(table, column, "other")); !strings.Contains(diff, column) {
				t.Errorf("a difference in %s.%s is reported by %q", table, column, diff)
			}
		}
	}
}

func (d dump) rows() int {
	n := 0
	for _, rows := range d {
		n += len(rows)
	}
	return n
}

// maxDifferences is the highest number of differences in a report.
const maxDifferences = 60

// differs returns the differences between two databases by row: rows that only the first has (-), rows that only the second has
// (+), and rows with different columns (!).
func differs(first, second dump) string {
	var lines []string
	for _, table := range slices.Sorted(maps.Keys(union(first, second))) {
		for _, uuid := range slices.Sorted(maps.Keys(union(first[table], second[table]))) {
			a, inFirst := first[table][uuid]
			b, inSecond := second[table][uuid]
			switch {
			case !inSecond:
				lines = append(lines, fmt.Sprintf("- %s %s", table, nameOf(a)))
			case !inFirst:
				lines = append(lines, fmt.Sprintf("+ %s %s", table, nameOf(b)))
			case !cmp.Equal(a, b):
				lines = append(lines, fmt.Sprintf("! %s %s:\n%s", table, nameOf(a), cmp.Diff(a, b)))
			}
		}
	}
	// Added and removed rows come first, because they explain differences in other rows.
	slices.SortStableFunc(lines, func(a, b string) int { return strings.Compare(b[:1], a[:1]) })
	if len(lines) > maxDifferences {
		lines = append(lines[:maxDifferences], fmt.Sprintf("and %d more", len(lines)-maxDifferences))
	}
	return strings.Join(lines, "\n")
}

func union[V any](a, b map[string]V) map[string]bool {
	keys := map[string]bool{}
	for _, m := range []map[string]V{a, b} {
		for key := range m {
			keys[key] = true
		}
	}
	return keys
}

func nameOf(row nbtest.Row) string {
	ids, _ := row["external_ids"].(map[string]string)
	return fmt.Sprint(row["name"], " ", ids["kiln-owner"], " ", ids["kiln-key"])
}

// quiet is how long a database must not change before its controller counts as done. It is longer than the delay of aggregated
// status writes.
const quiet = 2 * time.Second

// settle waits until the controller is done, and returns the content of the database.
func (w *world) settle(limit time.Duration) dump {
	w.Helper()
	var last dump
	var since time.Time
	w.eventually(limit, func() string {
		if busy := w.idle(); busy != "" {
			since = time.Time{}
			return "the controller is busy: " + busy
		}
		now := dumpOf(w.database)
		if since.IsZero() || !cmp.Equal(last, now) {
			last, since = now, time.Now()
			return "the database has just changed"
		}
		if left := quiet - time.Since(since); left > 0 {
			return fmt.Sprintf("the database may still change: %s to wait", left)
		}
		return ""
	})
	return last
}

var podOwner = regexp.MustCompile(`(?m)^[-+] .* Pod/([^/]+)/(\S+) ovn$`)

// podsIn returns the state, in the API server, of the pods whose ports are in diff.
func (w *world) podsIn(diff string) string {
	var said strings.Builder
	for _, match := range podOwner.FindAllStringSubmatch(diff, 10) {
		pod, ip := &corev1.Pod{}, &kubeovnv1.IP{}
		err := w.client.Get(w.Context(), client.ObjectKey{Namespace: match[1], Name: match[2]}, pod)
		ipErr := w.client.Get(w.Context(), client.ObjectKey{Name: match[2] + "." + match[1]}, ip)
		fmt.Fprintf(&said, "\npod %s/%s: %v %v %v; IP: %v %v %+v", match[1], match[2], err, pod.UID, pod.Annotations, ipErr, ip.Labels, ip.Spec)
	}
	return said.String()
}

// sameAsFresh starts a controller with an empty database and the same objects, and compares the result with the present database.
func (w *world) sameAsFresh(limit time.Duration) {
	w.Helper()
	have := w.settle(limit)
	w.kill()
	fresh := nbtest.Start(w.T)
	w.serve(fresh)
	w.start()
	w.eventually(limit, func() string {
		if busy := w.idle(); busy != "" {
			return "the fresh controller is busy: " + busy
		}
		if diff := differs(dumpOf(fresh), have); diff != "" {
			return "the database (+) and a fresh controller's result in an empty one (-) differ:\n" + diff + w.podsIn(diff)
		}
		return ""
	})
	w.kill()
	w.serve(w.database)
	w.start()
	w.Logf("%d rows are the same as a fresh controller's", have.rows())
}
