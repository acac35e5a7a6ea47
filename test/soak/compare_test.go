// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"regexp"
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

// TestEveryColumnIsCompared checks that the comparison covers every column, because an error in a column that is left out would not
// be found.
func TestEveryColumnIsCompared(t *testing.T) {
	database := nbtest.Start(t)
	for _, table := range []string{nb.LogicalSwitchTable, nb.LogicalRouterTable, nb.LoadBalancerTable, nb.AddressSetTable, nb.PortGroupTable} {
		database.Transact(nbtest.Op{"op": "insert", "table": table, "row": map[string]any{"name": "a"}})
	}
	for table, rows := range database.Content() {
		for _, row := range rows {
			for column := range nb.Schema().Table(table).Columns {
				if _, ok := row[column]; !ok && table != nb.NBGlobalTable {
					t.Errorf("%s.%s is not read", table, column)
				}
			}
		}
	}
	of := func(table, column, value string) nbtest.Content {
		row := nbtest.Row{}
		for name := range nb.Schema().Table(table).Columns {
			row[name] = "same"
		}
		row[column] = value
		return nbtest.Content{table: {"uuid": row}}
	}
	for table, schema := range nb.Schema().Tables {
		for column := range schema.Columns {
			if diff := of(table, column, "one").Differences(of(table, column, "other")); !strings.Contains(diff, column) {
				t.Errorf("a difference in %s.%s is reported by %q", table, column, diff)
			}
		}
	}
}

// quiet is how long a database must not change before its controller counts as done. It is longer than the delay of aggregated
// status writes.
const quiet = 2 * time.Second

// settle waits until the controller is done, and returns the content of the database.
func (w *world) settle(limit time.Duration) nbtest.Content {
	w.Helper()
	var last nbtest.Content
	var since time.Time
	w.eventually(limit, func() string {
		if busy := w.idle(); busy != "" {
			since = time.Time{}
			return "the controller is busy: " + busy
		}
		now := w.database.Content()
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
		if diff := fresh.Content().Differences(have); diff != "" {
			return "the database (+) and a fresh controller's result in an empty one (-) differ:\n" + diff + w.podsIn(diff)
		}
		return ""
	})
	w.kill()
	w.serve(w.database)
	w.start()
	w.Logf("%d rows are the same as a fresh controller's", have.Size())
}
