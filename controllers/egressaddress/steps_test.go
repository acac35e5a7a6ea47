// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egressaddress_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// selects makes an EgressAddress select pods by the label app.
func selects(e *kubeovnv1.EgressAddress, apps ...string) *kubeovnv1.EgressAddress {
	e.Spec.PodSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "In", Values: apps}}}
	return e
}

// TestAProcessThatEndsAtAnyStep: the controller ends after each number of transactions of a change. The next one ends with the same rows, and no state of the database lets the
// packets of a selected pod leave with the address of a node.
func TestAProcessThatEndsAtAnyStep(t *testing.T) {
	type objects struct{ older, younger *kubeovnv1.EgressAddress }
	for name, tt := range map[string]struct {
		before func(o objects) // nil: the younger one does not exist before
		change func(w *world, o objects)
		// youngers and olders are the pods of each at the end; nil: it does not exist.
		youngers, olders []string
	}{
		"creation": {
			change: func(w *world, o objects) { w.Create(selects(o.younger, "web", "db")) }, youngers: []string{"db"}, olders: []string{"web"},
		},
		"a wider selector": {
			change: func(w *world, o objects) {
				w.Get(o.older)
				w.Change(o.older, func() { selects(o.older, "web", "db") })
			},
			olders: []string{"web", "db"},
		},
		"a narrower selector": {
			before: func(o objects) { selects(o.younger, "web") },
			change: func(w *world, o objects) {
				w.Get(o.older)
				w.Change(o.older, func() { selects(o.older, "db") })
			},
			youngers: []string{"web"}, olders: []string{"db"},
		},
		"an older selector that takes a pod": {
			before: func(o objects) {
				selects(o.older, "db")
				selects(o.younger, "web")
			},
			change: func(w *world, o objects) {
				w.Get(o.older)
				w.Change(o.older, func() { selects(o.older, "web", "db") })
			},
			youngers: []string{}, olders: []string{"web", "db"},
		},
		"another label": {
			before: func(o objects) { selects(o.younger, "other") },
			change: func(w *world, _ objects) {
				web := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "web"}}
				w.label(web, "other")
			},
			youngers: []string{"web"}, olders: []string{},
		},
		"a moved address": {
			before: func(o objects) { selects(o.younger, "db") },
			change: func(w *world, o objects) {
				w.Get(o.older)
				w.Change(o.older, func() { o.older.Spec.Addresses = []string{"172.30.0.212"} })
				w.Get(o.younger)
				w.Change(o.younger, func() { o.younger.Spec.Addresses = []string{"172.30.0.210"} })
			},
			youngers: []string{"db"}, olders: []string{"web"},
		},
		"deletion": {
			before:   func(o objects) { selects(o.younger, "web") },
			change:   func(w *world, o objects) { w.Delete(o.older) },
			youngers: []string{"web"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			pods := map[string]*corev1.Pod{"web": w.pod("team-a", "web", "web"), "db": w.pod("team-a", "db", "db")}
			g := w.guard()
			for step, ended := 0, true; ended; step++ {
				o := objects{onNodes("a-older", "a", "172.30.0.210"), onNodes("b-younger", "a", "172.30.0.211")}
				present := []client.Object{o.older}
				if tt.before != nil {
					tt.before(o)
					present = append(present, o.younger)
				}
				for _, e := range present {
					w.Create(e)
					w.Says(e.(*kubeovnv1.EgressAddress), kubeovnv1.ConditionValidated, metav1.ConditionTrue)
				}
				w.Eventually(func() string { return w.uncovered(pods["web"]) })
				w.Rests("egressaddress")
				g.watch(pods["web"])
				done := func() string {
					want := map[string][]string{"b-younger": tt.youngers, "a-older": tt.olders}
					return w.differs(pods, want)
				}
				exceeded := w.process.Northbound().Limit(step)
				tt.change(w, o)
				w.Eventually(func() string {
					select {
					case <-exceeded:
						ended = true
						return ""
					default:
						ended = false
						return done()
					}
				})
				w.run()
				w.Eventually(done)
				w.Rests("egressaddress")
				g.check(w, fmt.Sprintf("after %d transactions", step))
				g.watch()
				for _, e := range []client.Object{o.older, o.younger} {
					w.Must(client.IgnoreNotFound(w.Client.Delete(w.Context(), e)))
				}
				w.label(pods["web"], "web")
				w.Eventually(func() string { return w.differs(pods, nil) })
			}
		})
	}
}

// differs returns a text unless each EgressAddress has these pods and one policy, and no others exist.
func (w *world) differs(pods map[string]*corev1.Pod, want map[string][]string) string {
	w.Helper()
	matches, _ := w.ways()
	policies := 0
	for name, apps := range want {
		var of []*corev1.Pod
		for _, app := range apps {
			of = append(of, pods[app])
		}
		if why := w.lacks(name, of...); why != "" {
			return why
		}
		if apps != nil {
			policies++
		}
	}
	if len(matches) != policies || slices.ContainsFunc(matches, func(m string) bool { return strings.Contains(m, "{") }) {
		return fmt.Sprintf("the policies are for %q, want %d with one set each", matches, policies)
	}
	return ""
}
