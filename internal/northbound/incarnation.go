// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// incarnationMark separates the key of a load balancer from the number of its incarnation.
const incarnationMark = "~"

// Limits of the memory of deleted load balancers. ovn-northd needs seconds to process a deletion, even in large clusters.
const (
	deletionMemory = 10 * time.Minute
	maxDeletions   = 4096
)

// incarnations give a load balancer another UUID when it is inserted again soon after its deletion. If ovn-northd 25.03 sees both
// changes of one UUID in the same pass, it takes the new row for deleted: it does not serve the load balancer, and aborts at a
// later change of it. So everybody who can delete and create Services could stop ovn-northd. The other tables that the engine
// writes have no such defect (TestRowsAreReplacedWhileNorthdIsBusy). The session's lock guards the incarnations, as the index.
type incarnations struct {
	current map[desired.Ref]desired.Ref // of the rows whose key has a number, by the Ref without it
	deleted map[desired.Ref]deletion    // by the Ref without a number
	count   uint64                      // of all deletions
}

// deletion is the last deletion of a load balancer.
type deletion struct {
	number uint64
	at     time.Time
}

func newIncarnations() incarnations {
	return incarnations{current: map[desired.Ref]desired.Ref{}, deleted: map[desired.Ref]deletion{}}
}

// base returns a Ref without the number of its incarnation.
func base(ref desired.Ref) desired.Ref {
	ref.Key, _, _ = strings.Cut(ref.Key, incarnationMark)
	return ref
}

// observe records that an owned row of a table was inserted or deleted.
func (x *incarnations) observe(table string, ref desired.Ref, inserted bool) {
	if table != nb.LoadBalancerTable {
		return
	}
	of := base(ref)
	switch {
	case inserted && of != ref:
		x.current[of] = ref
	case inserted:
		delete(x.current, of)
	default:
		if x.current[of] == ref {
			delete(x.current, of)
		}
		x.count++
		x.forget()
		x.deleted[of] = deletion{number: x.count, at: time.Now()}
	}
}

// forget drops the deletions that ovn-northd has processed, once there are many.
func (x *incarnations) forget() {
	if len(x.deleted) < maxDeletions {
		return
	}
	maps.DeleteFunc(x.deleted, func(_ desired.Ref, d deletion) bool { return time.Since(d.at) > deletionMemory })
}

// of returns the Ref of the row that stands for a row of a table: the existing incarnation, a new one after a recent deletion, or
// the row itself. exists reports whether the row itself is in the database.
func (x *incarnations) of(table string, ref desired.Ref, exists bool) desired.Ref {
	if table != nb.LoadBalancerTable || exists {
		return ref
	}
	if current, ok := x.current[ref]; ok {
		return current
	}
	if d, ok := x.deleted[ref]; ok && time.Since(d.at) <= deletionMemory {
		ref.Key += incarnationMark + strconv.FormatUint(d.number, 10)
	}
	return ref
}

// incarnate replaces the wanted load balancers by their incarnations, also in the rows that belong to them.
func (pl *planner) incarnate(wanted wantedRows) wantedRows {
	var renamed map[rowID]desired.Ref
	for _, w := range wanted.rows {
		ref := pl.index.incarnations.of(w.id.table, w.ref, pl.replica.Row(w.id.table, w.id.uuid) != nil)
		if ref == w.ref {
			continue
		}
		if renamed == nil {
			renamed = map[rowID]desired.Ref{}
		}
		renamed[w.id] = ref
	}
	if renamed == nil {
		return wanted
	}
	wanted.rows = slices.Clone(wanted.rows)
	wanted.ids = make(map[rowID]struct{}, len(wanted.rows))
	for i, w := range wanted.rows {
		wanted.rows[i] = w.rename(renamed)
		wanted.ids[wanted.rows[i].id] = struct{}{}
	}
	return wanted
}

// rename returns the row with other UUIDs for itself and its parent.
func (w wantedRow) rename(renamed map[rowID]desired.Ref) wantedRow {
	ids := map[string]string{}
	if ref, ok := renamed[w.id]; ok {
		w.ref, w.id.uuid = ref, ref.UUID()
		ids[keyKey] = ref.Key
	}
	if w.parent != nil {
		if ref, ok := renamed[rowID{table: w.parent.Table, uuid: w.parent.UUID}]; ok {
			parent := ovsdbclient.SetID{Table: w.parent.Table, Column: w.parent.Column, UUID: ref.UUID()}
			w.parent = &parent
			ids[keyParent] = formatSet(parent)
		}
	}
	w.needs = slices.Clone(w.needs)
	for i, id := range w.needs {
		if ref, ok := renamed[id]; ok {
			w.needs[i].uuid = ref.UUID()
		}
	}
	if len(ids) == 0 {
		return w
	}
	w.values = slices.Clone(w.values)
	for i, c := range w.table.columns {
		if c.name == "external_ids" {
			stamped := maps.Clone(w.values[i].(map[string]string))
			maps.Copy(stamped, ids)
			w.values[i] = stamped
		}
	}
	return w
}
