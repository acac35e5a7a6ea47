// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

// dump is what a northbound database holds, by table and UUID.
type dump map[string]map[string]nbtest.Row

// dumpOf reads a database, without what tells of the controller's life rather than of the network.
func dumpOf(database *nbtest.Server) dump {
	d := dump(database.Dump())
	delete(d, "NB_Global")
	delete(d, "Connection")
	delete(d, "SSL")
	return d
}

func (d dump) rows() int {
	n := 0
	for _, rows := range d {
		n += len(rows)
	}
	return n
}

// maxDifferences is how many differences are told.
const maxDifferences = 60

// differs tells, row by row, where two databases differ: what only the first has (-), what only the second has (+), and columns.
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
	// Rows that are there or not explain what others hold.
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

// quiet is how long a database must stay the same for its controller to be done: longer than changes of use are gathered.
const quiet = 2 * time.Second

// settle waits until the controller is done, and returns what the database holds then.
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

// sameAsFresh has a controller that knows nothing fill an empty database from the same objects, and compares.
func (w *world) sameAsFresh(limit time.Duration) {
	w.Helper()
	have := w.settle(limit)
	w.kill()
	fresh := nbtest.Start(w.T)
	w.serve(fresh)
	w.start()
	w.eventually(limit, func() string {
		if diff := differs(dumpOf(fresh), have); diff != "" {
			return "the database (+) and what a fresh controller writes into an empty one (-) differ:\n" + diff
		}
		return ""
	})
	w.kill()
	w.serve(w.database)
	w.start()
	w.Logf("%d rows are those that a fresh controller writes", have.rows())
}
