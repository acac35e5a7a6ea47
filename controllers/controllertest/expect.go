// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	eventsv1 "k8s.io/api/events/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

// Eventually waits until the function returns "", and fails the test with its last result.
func (w *World) Eventually(what func() string) {
	w.Helper()
	eventually.Wait{}.Empty(w, what)
}

// Says waits until a condition of an object has a status, for the object's current generation, and contains all words in its reason and
// message. It returns the condition.
func (w *World) Says(o client.Object, condition string, status metav1.ConditionStatus, words ...string) *metav1.Condition {
	w.Helper()
	var c *metav1.Condition
	w.Eventually(func() string {
		if !w.Get(o) {
			return fmt.Sprintf("%T %s was deleted", o, o.GetName())
		}
		c = apimeta.FindStatusCondition(kubeovnv1.ConditionsOf(o), condition)
		if c == nil || c.Status != status || c.ObservedGeneration != o.GetGeneration() ||
			slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(c.Reason+": "+c.Message, word) }) {
			return fmt.Sprintf("%T %s: condition %s is %+v at generation %d, want %s with %q", o, o.GetName(), condition, c, o.GetGeneration(), status, words)
		}
		return ""
	})
	return c
}

// Ready waits until each object is ready.
func (w *World) Ready(objects ...client.Object) {
	w.Helper()
	for _, o := range objects {
		w.Says(o, kubeovnv1.ConditionReady, metav1.ConditionTrue)
	}
}

// Gone waits until the objects do not exist.
func (w *World) Gone(objects ...client.Object) {
	w.Helper()
	for _, o := range objects {
		w.Eventually(func() string {
			if w.Get(o) {
				return fmt.Sprintf("%T %s is still there: %+v", o, o.GetName(), kubeovnv1.ConditionsOf(o))
			}
			return ""
		})
	}
}

// Event waits for an event about an object that has the type and reason of like, if set, and contains the note of like.
func (w *World) Event(about client.Object, like eventsv1.Event) {
	w.Helper()
	w.Eventually(func() string {
		var list eventsv1.EventList
		w.Must(w.Client.List(w.Context(), &list))
		var said []string
		for i := range list.Items {
			e := &list.Items[i]
			if e.Regarding.UID != about.GetUID() {
				continue
			}
			if (like.Type == "" || e.Type == like.Type) && (like.Reason == "" || e.Reason == like.Reason) && strings.Contains(e.Note, like.Note) {
				return ""
			}
			said = append(said, fmt.Sprintf("%s %s: %s", e.Type, e.Reason, e.Note))
		}
		return fmt.Sprintf("no event about %T %s is like %s %s: %s; there are %q", about, about.GetName(), like.Type, like.Reason, like.Note, said)
	})
}

// Rows waits until the strings that f returns for the rows of a table, sorted, equal want. f returns "" to skip a row.
func (w *World) Rows(table string, f func(row nbtest.Row) string, want ...string) {
	w.Helper()
	w.Eventually(func() string {
		var got []string
		for _, row := range w.Database.Rows(table) {
			if s := f(row); s != "" {
				got = append(got, s)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Sprintf("%s has\n%q, want\n%q", table, got, want)
		}
		return ""
	})
}

// RestoresRows deletes the rows of an owner, such as `Vpc//blue`, and waits until each table has the same number of its rows again.
func (w *World) RestoresRows(owner string) {
	w.Helper()
	before := w.Database.Owned(owner)
	if len(before) == 0 {
		w.Fatalf("%s has no rows", owner)
	}
	w.Database.Delete(before)
	w.Eventually(func() string {
		if diff := cmp.Diff(counts(before), counts(w.Database.Owned(owner))); diff != "" {
			return fmt.Sprintf("rows of %s that others deleted (-) and that are there (+):\n%s", owner, diff)
		}
		return ""
	})
}

// Recreates deletes an object and waits until another object has its name.
func (w *World) Recreates(o client.Object) {
	w.Helper()
	if !w.Get(o) {
		w.Fatalf("there is no %T %s", o, o.GetName())
	}
	before := o.GetUID()
	w.Delete(o)
	w.Eventually(func() string {
		if !w.Get(o) || o.GetUID() == before {
			return fmt.Sprintf("%T %s, which someone deleted, is not there again", o, o.GetName())
		}
		return ""
	})
}

// NoRows waits until an owner has no rows.
func (w *World) NoRows(owner string) {
	w.Helper()
	w.Eventually(func() string {
		if rows := counts(w.Database.Owned(owner)); len(rows) > 0 {
			return fmt.Sprintf("%s still has rows: %v", owner, rows)
		}
		return ""
	})
}

func counts(tables map[string]string) map[string]int {
	n := map[string]int{}
	for _, table := range tables {
		n[table]++
	}
	return n
}
