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

// incarnations give each inserted load balancer a UUID that no load balancer had before. If ovn-northd 25.03 sees the deletion and the
// insertion of one UUID in the same pass, it takes the new row for deleted: it does not serve the load balancer, and aborts at a
// later change of it. So everybody who can delete and create Services could stop ovn-northd. The other tables that the engine
// writes have no such defect (TestRowsAreReplacedWhileNorthdIsBusy). The session's lock guards the incarnations, as the index.
type incarnations struct {
	rows  map[desired.Ref]desired.Ref // the rows whose key has a number, by the Ref without it
	bases map[string]desired.Ref      // the inverse: the Ref without a number, by the UUID of the row
}

func newIncarnations() incarnations {
	return incarnations{rows: map[desired.Ref]desired.Ref{}, bases: map[string]desired.Ref{}}
}

// inserted records a new row of the engine.
func (x *incarnations) inserted(table string, ref desired.Ref) {
	if table != nb.LoadBalancerTable {
		return
	}
	base := ref
	if base.Key, _, _ = strings.Cut(ref.Key, incarnationMark); base != ref {
		x.rows[base], x.bases[ref.UUID()] = ref, base
	}
}

// deleted forgets a row. A row whose external_ids another client has changed is still the incarnation, so that the engine repairs it.
func (x *incarnations) deleted(uuid string) {
	base, ok := x.bases[uuid]
	if !ok {
		return
	}
	delete(x.bases, uuid)
	if x.rows[base].UUID() == uuid {
		delete(x.rows, base)
	}
}

// of returns the Ref of the row that stands for a row of a table: its incarnation, or a new one. The number of a new one is the time, so no
// other process has used it.
func (x *incarnations) of(table string, ref desired.Ref) desired.Ref {
	if table != nb.LoadBalancerTable {
		return ref
	}
	if row, ok := x.rows[ref]; ok {
		return row
	}
	ref.Key += incarnationMark + strconv.FormatInt(time.Now().UnixNano(), 36)
	return ref
}

// incarnate replaces the wanted load balancers by their incarnations, also in the rows that belong to them.
func (pl *planner) incarnate(wanted wantedRows) wantedRows {
	var renamed map[rowID]desired.Ref
	for _, w := range wanted.rows {
		ref := pl.index.incarnations.of(w.id.table, w.ref)
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
