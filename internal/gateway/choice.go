// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
)

// State is the fitness of a node as a gateway; a lower value is fitter.
type State int

// States of nodes.
const (
	// Serving: the node is ready, and its data path is known to work.
	Serving State = iota
	// Unproven: the node is ready, but the state of its data path is not known yet, as after a start of the controller.
	Unproven
	// Cordoned: the node serves, but its administrator is about to remove it.
	Cordoned
	// Down: the node or its data path does not respond.
	Down
)

// String returns the state for logs.
func (s State) String() string {
	switch s {
	case Serving:
		return "serving"
	case Unproven:
		return "unproven"
	case Cordoned:
		return "cordoned"
	case Down:
		return "down"
	}
	return strconv.Itoa(int(s))
}

// Candidate is a node that can be a subnet's gateway.
type Candidate struct {
	Name  string
	State State
}

// StateOf returns the state of a node, from the Node object and the pulse of its data path.
func StateOf(node *corev1.Node, pulse LeaseState) State {
	switch {
	case node.DeletionTimestamp != nil || !ready(node) || pulse == Stopped:
		return Down
	case node.Spec.Unschedulable:
		return Cordoned
	case pulse == Unknown:
		return Unproven
	}
	return Serving
}

// ready evaluates the node conditions of the kubelet and, for the network, of the agent.
func ready(node *corev1.Node) bool {
	return hasCondition(node, corev1.NodeReady) && HasNetwork(node)
}

// HasNetwork reports whether the agent of a node does not report its network as unavailable.
func HasNetwork(node *corev1.Node) bool { return !hasCondition(node, corev1.NodeNetworkUnavailable) }

func hasCondition(node *corev1.Node, condition corev1.NodeConditionType) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == condition && c.Status == corev1.ConditionTrue
	})
}

// Choose returns the candidates that carry the traffic, in the order of candidates: the first fit one or, with ecmp, all fit
// ones. current are the nodes that carry it now. An unproven node does not replace a current one. If all candidates are down,
// the current ones that are still candidates stay: a gateway that may work is better than none.
func Choose(candidates []Candidate, current []string, ecmp bool) []string {
	selected := fit(candidates, current)
	if !ecmp && len(selected) > 1 {
		selected = selected[:1]
	}
	return selected
}

func fit(candidates []Candidate, current []string) []string {
	which := func(is func(Candidate) bool) []string {
		var names []string
		for _, c := range candidates {
			if is(c) {
				names = append(names, c.Name)
			}
		}
		return names
	}
	for _, is := range []func(Candidate) bool{
		func(c Candidate) bool {
			return c.State == Serving || c.State == Unproven && slices.Contains(current, c.Name)
		},
		func(c Candidate) bool { return c.State == Unproven },
		func(c Candidate) bool { return c.State == Cordoned },
	} {
		if names := which(is); len(names) > 0 {
			return names
		}
	}
	return which(func(c Candidate) bool { return slices.Contains(current, c.Name) })
}

// AnyUp reports whether at least one of the selected nodes is not down.
func AnyUp(candidates []Candidate, selected []string) bool {
	return slices.ContainsFunc(candidates, func(c Candidate) bool { return c.State != Down && slices.Contains(selected, c.Name) })
}

// LogChoice logs the choice of gateway nodes with the states of the candidates: at verbosity 1 if it changed, otherwise at 2. The kind is
// the key of the name: subnet or vpc.
func LogChoice(log logr.Logger, kind, name string, candidates []Candidate, before, chosen []string) {
	message, verbosity := "gateway nodes stay", 2
	if !slices.Equal(before, chosen) {
		message, verbosity = "chose gateway nodes", 1
	}
	if log = log.V(verbosity); !log.Enabled() {
		return
	}
	states := make([]string, 0, len(candidates))
	for _, c := range candidates {
		states = append(states, c.Name+"="+c.State.String())
	}
	log.Info(message, kind, name, "nodes", list(chosen), "before", list(before), "candidates", list(states))
}

func list(names []string) string { return cmp.Or(strings.Join(names, ","), "none") }
