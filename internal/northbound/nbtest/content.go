// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package nbtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// Content is the content of a northbound database, by table and UUID, as far as it depends on the objects of the cluster only.
type Content map[string]map[string]Row

// global is the key of the only row of NB_Global in a Content, because its UUID differs between databases.
const global = "global"

// Content reads the database. Of NB_Global it keeps only the options: the other columns depend on the database and on the life of the
// controller.
func (s *Server) Content() Content {
	s.t.Helper()
	dump := s.Dump()
	for _, row := range dump[nb.NBGlobalTable] {
		dump[nb.NBGlobalTable] = map[string]Row{global: {"options": row["options"]}}
	}
	delete(dump, nb.ConnectionTable)
	delete(dump, nb.SSLTable)
	return WithoutIncarnations(dump)
}

// Size returns the number of rows.
func (c Content) Size() int {
	n := 0
	for _, rows := range c {
		n += len(rows)
	}
	return n
}

// maxDifferences is the highest number of differences in a report.
const maxDifferences = 60

// Differences compares two databases by row: rows that only c has (-), rows that only the other one has (+), and rows with different
// columns (!). It returns "" if there are none.
func (c Content) Differences(other Content) string {
	var lines []string
	for _, table := range slices.Sorted(maps.Keys(union(c, other))) {
		for _, uuid := range slices.Sorted(maps.Keys(union(c[table], other[table]))) {
			a, inFirst := c[table][uuid]
			b, inSecond := other[table][uuid]
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

func nameOf(row Row) string {
	ids, _ := row["external_ids"].(map[string]string)
	return fmt.Sprint(row["name"], " ", ids[OwnerID], " ", ids["kiln-key"])
}
