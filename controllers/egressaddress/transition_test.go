// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egressaddress_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/gateway"
)

// ways returns the match of each policy for pods of EgressAddresses, and the address sets by their names.
func (w *world) ways() (matches []string, sets map[string][]string) {
	w.Helper()
	sets = map[string][]string{}
	for _, row := range w.Database.Rows("Address_Set") {
		sets[fmt.Sprint(row["name"])] = row.Strings("addresses")
	}
	for _, row := range w.Database.Rows("Logical_Router_Policy") {
		if fmt.Sprint(row["priority"]) == "29118" {
			matches = append(matches, fmt.Sprint(row["match"]))
		}
	}
	return matches, sets
}

// uncovered returns a text unless a policy is for a set with the pod.
func (w *world) uncovered(p *corev1.Pod) string {
	w.Helper()
	matches, sets := w.ways()
	for name, members := range sets {
		if slices.Contains(members, addresses(p)[0]) && slices.ContainsFunc(matches, func(m string) bool { return strings.Contains(m, "$"+name) }) {
			return ""
		}
	}
	return fmt.Sprintf("no policy is for the address of pod %s: the policies are for %q, the sets are %v", p.Name, matches, sets)
}

// covered fails the test unless a policy is for a set with the pod.
func (w *world) covered(p *corev1.Pod) {
	w.Helper()
	if wrong := w.uncovered(p); wrong != "" {
		w.Error(wrong)
	}
}

func TestAFormerPolicyIsKeptUntilItsPodsHaveMoved(t *testing.T) {
	for name, change := range map[string]func(w *world, older *kubeovnv1.EgressAddress){
		"deleted": func(w *world, older *kubeovnv1.EgressAddress) { w.Delete(older) },
		"narrowed": func(w *world, older *kubeovnv1.EgressAddress) {
			w.Get(older)
			w.Change(older, func() { older.Spec.PodSelector.MatchLabels["app"] = "db" })
		},
		"with an OvnEip": func(w *world, older *kubeovnv1.EgressAddress) {
			w.Get(older)
			w.Change(older, func() {
				older.Spec.PodSelector.MatchLabels["app"] = "db"
				older.Spec.Addresses, older.Spec.NodeSelector, older.Spec.OvnEip = nil, nil, "shop"
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			web := w.pod("team-a", "web", "web")
			older, younger := onNodes("a-older", "a", "172.30.0.210"), onNodes("b-younger", "a", "172.30.0.211")
			w.Create(older)
			w.Ready(older)
			w.has("a-older", web)
			w.Create(younger)
			w.Eventually(func() string {
				if w.Get(younger); len(younger.Status.Conditions) == 0 {
					return "b-younger has no conditions"
				}
				return ""
			})
			w.Rests("egressaddress")
			before := w.Reconciles("egressaddress")
			w.process.Northbound().Poison(addresses(web)[0]) // the row of the pod stays
			change(w, older)
			w.Eventually(func() string {
				if w.Reconciles("egressaddress") == before {
					return "nothing reconciles the change"
				}
				return ""
			})
			w.Rests("egressaddress")
			w.covered(web)
			w.run()
			w.has("b-younger", web)
			w.Eventually(func() string { return w.uncovered(web) })
			switch name {
			case "deleted":
				w.actions("reroute")
			case "with an OvnEip": // which does not exist
				w.actions("drop", "reroute")
			}
			w.Ready(younger)
		})
	}
}

// TestPoliciesNameOnlySetsThatExist: ovn-controller ignores a policy with another set, and the packets of all its pods leave with another source.
func TestPoliciesNameOnlySetsThatExist(t *testing.T) {
	w := newWorld(t)
	web, db := w.pod("team-a", "web", "web"), w.pod("team-a", "db", "db")
	out := onNodes("out", "a", "172.30.0.210")
	w.Create(out)
	w.Ready(out)
	w.has("out", web)
	w.process.Northbound().Poison("[app in (db,web)]") // no rows of the new set
	w.Get(out)
	w.Change(out, func() {
		out.Spec.PodSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "In", Values: []string{"db", "web"}}}}
	})
	w.Ready(out)
	w.existing()
	w.covered(web)
	w.run()
	w.has("out", web, db)
	w.existing()
	w.Eventually(func() string { return w.uncovered(web) })
	w.Eventually(func() string { return w.uncovered(db) })
}

// existing fails the test if a policy names a set that does not exist.
func (w *world) existing() {
	w.Helper()
	matches, sets := w.ways()
	for _, match := range matches {
		for _, word := range strings.FieldsFunc(match, func(r rune) bool { return strings.ContainsRune(" {},", r) }) {
			if name, is := strings.CutPrefix(word, "$"); is && sets[name] == nil {
				w.Errorf("%s is in no set: %v", word, sets)
			}
		}
	}
}

func TestARecreatedEgressAddressKeepsItsPods(t *testing.T) {
	w := newWorld(t)
	web := w.pod("team-a", "web", "web")
	out := onNodes("out", "a", "172.30.0.210")
	w.Create(out)
	w.Ready(out)
	w.has("out", web)
	w.Eventually(func() string {
		if time.Now().Unix() <= out.CreationTimestamp.Unix() {
			return "it would have the same age"
		}
		return ""
	})
	w.Get(out)
	w.process.Northbound().Poison(addresses(web)[0]) // the row of the pod stays
	w.process.Northbound().Hold()
	first := out.Status.Node
	w.leases.Set(out.Status.Standby, gateway.Alive)
	w.leases.Set(first, gateway.Stopped)
	w.process.Northbound().AwaitHeld() // the controller is at work
	w.Delete(out)
	out = onNodes("out", "a", "172.30.0.210")
	w.Create(out)
	w.process.Northbound().Release()
	w.Says(out, kubeovnv1.ConditionReady, metav1.ConditionTrue)
	w.Rests("egressaddress")
	w.covered(web)
	w.run()
	w.has("out", web)
	w.Eventually(func() string { return w.uncovered(web) })
	w.actions("reroute")
}

// TestPacketsOfPodsWhoseRowsAreRefusedAreDropped: another EgressAddress can have the addresses of a deleted one before the rows are committed.
func TestPacketsOfPodsWhoseRowsAreRefusedAreDropped(t *testing.T) {
	w := newWorld(t)
	w.Repeats()
	web, other := w.pod("team-a", "web", "web"), w.pod("team-a", "other", "web")
	older, younger := onNodes("a-older", "a", "172.30.0.210"), onNodes("b-younger", "a", "172.30.0.211")
	w.Create(older)
	w.Ready(older)
	w.has("a-older", web, other)
	w.Create(younger)
	w.Says(younger, kubeovnv1.ConditionReady, metav1.ConditionFalse, "PodsOfAnother")
	w.Rests("egressaddress")
	w.process.Northbound().Poison(addresses(web)[0])
	w.Delete(older)
	w.has("b-younger", other)
	w.actions("drop", "reroute")
	w.routers("b-younger on " + younger.Status.Node)
	w.covered(web)
	w.Event(web, eventsv1.Event{Reason: "AcquireAddressFailed", Note: "the northbound database refuses the port of this pod"})
	w.run()
	w.has("b-younger", web, other)
	w.actions("reroute")
	w.NoRows("EgressAddress//a-older")
}
