// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
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

// differs says where two databases differ, shortened to what a person reads.
func differs(want, got dump) string {
	diff := cmp.Diff(want, got)
	if len(diff) > 6000 {
		diff = diff[:6000] + "…"
	}
	return diff
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
