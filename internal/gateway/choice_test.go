// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// candidates parses "a:s b:u": s is serving, u unproven, c cordoned, d down.
func candidates(t *testing.T, text string) []Candidate {
	t.Helper()
	var out []Candidate
	for field := range strings.FieldsSeq(text) {
		name, state, _ := strings.Cut(field, ":")
		i := strings.Index("sucd", state)
		if i < 0 {
			t.Fatalf("state %q", state)
		}
		out = append(out, Candidate{Name: name, State: State(i)})
	}
	return out
}

func TestChoose(t *testing.T) {
	for name, c := range map[string]struct {
		candidates, current string
		one, all            string
	}{
		"nobody":                               {"", "", "", ""},
		"the first in order":                   {"b:s a:s", "", "b", "b a"},
		"the first in order comes back":        {"a:s b:s", "b", "a", "a b"},
		"the first is down":                    {"a:d b:s c:s", "a", "b", "b c"},
		"the first is cordoned":                {"a:c b:s", "a", "b", "b"},
		"all are cordoned":                     {"a:c b:c", "a", "a", "a b"},
		"the only one left is cordoned":        {"a:d b:c", "a", "b", "b"},
		"nothing is known after a restart":     {"a:u b:u", "b", "b", "b"},
		"nothing is known of a new gateway":    {"a:u b:u", "", "a", "a b"},
		"the unproven does not take over":      {"a:u b:s", "b", "b", "b"},
		"the unproven that carries it stays":   {"a:u b:s", "a", "a", "a b"},
		"the unproven is better than the dead": {"a:d b:u", "a", "b", "b"},
		"the last hop stays":                   {"a:d b:d", "a", "a", "a"},
		"the last hops stay":                   {"a:d b:d c:d", "a b", "a", "a b"},
		"nobody served ever":                   {"a:d b:d", "", "", ""},
		"a former candidate does not":          {"b:d", "a", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			list, current := candidates(t, c.candidates), strings.Fields(c.current)
			if got := Choose(list, current, false); !slices.Equal(got, strings.Fields(c.one)) {
				t.Errorf("one: got %v, want %s", got, c.one)
			}
			if got := Choose(list, current, true); !slices.Equal(got, strings.Fields(c.all)) {
				t.Errorf("all: got %v, want %s", got, c.all)
			}
		})
	}
}

func TestStateOf(t *testing.T) {
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		change(n)
		return n
	}
	same := func(*corev1.Node) {}
	for name, c := range map[string]struct {
		node  *corev1.Node
		pulse LeaseState
		want  State
	}{
		"ready, and its agent renews":           {node(same), Alive, Serving},
		"ready, of an agent without Leases":     {node(same), NoLease, Serving},
		"ready, without a Lease yet":            {node(same), Unknown, Unproven},
		"ready, and its data path is dead":      {node(same), Stopped, Down},
		"not registered":                        {&corev1.Node{}, NoLease, Down},
		"cordoned":                              {node(func(n *corev1.Node) { n.Spec.Unschedulable = true }), Unknown, Cordoned},
		"being deleted":                         {node(func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{} }), Alive, Down},
		"unknown, whatever its agent may renew": {node(func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }), Alive, Down},
		"without network": {node(func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue})
		}), Alive, Down},
	} {
		if got := StateOf(c.node, c.pulse); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestChoicesAreLogged(t *testing.T) {
	var lines []string
	log := funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{Verbosity: 1})
	candidates := []Candidate{{"a", Down}, {"b", Serving}, {"c", Cordoned}}
	LogChoice(log, "subnet", "web", candidates, []string{"a"}, []string{"b"})
	LogChoice(log, "subnet", "web", candidates, []string{"b"}, []string{"b"}) // at verbosity 2
	LogChoice(log, "vpc", "shop", nil, []string{"a"}, nil)
	want := []string{
		`"level"=1 "msg"="chose gateway nodes" "subnet"="web" "nodes"="b" "before"="a" "candidates"="a=down,b=serving,c=cordoned"`,
		`"level"=1 "msg"="chose gateway nodes" "vpc"="shop" "nodes"="none" "before"="a" "candidates"="none"`,
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got %q", lines)
	}
}
