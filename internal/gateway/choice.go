// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package gateway

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// State is how fit a node is to be a gateway; the lower the fitter.
type State int

// States of nodes.
const (
	// Serving: the node is ready and its data path is known to serve.
	Serving State = iota
	// Unproven: the node is ready, and nothing was heard of its data path yet, as after a start of the controller.
	Unproven
	// Cordoned: the node serves, and its user is about to take it away.
	Cordoned
	// Down: the node, or its data path, does not answer.
	Down
)

// Candidate is a node that a subnet's gateway may be.
type Candidate struct {
	Name  string
	State State
}

// StateOf is the state of a node that the API server describes so, and of whose data path pulse is known.
func StateOf(node *corev1.Node, pulse Pulse) State {
	switch {
	case node.DeletionTimestamp != nil || !ready(node) || pulse == Stopped:
		return Down
	case node.Spec.Unschedulable:
		return Cordoned
	case pulse == Unheard:
		return Unproven
	}
	return Serving
}

// ready is the kubelet's word, and that of the agent for the node's network.
func ready(node *corev1.Node) bool {
	up, unavailable := false, false
	for _, c := range node.Status.Conditions {
		switch c.Type {
		case corev1.NodeReady:
			up = c.Status == corev1.ConditionTrue
		case corev1.NodeNetworkUnavailable:
			unavailable = c.Status == corev1.ConditionTrue
		}
	}
	return up && !unavailable
}

// Choose returns which candidates carry the traffic, in their order: the first that is fit or, with ecmp, all that are. current are
// those that carry it now. A node that nothing is known of is not preferred to them; and when no candidate is left that is not down,
// those of them that are still candidates stay: a gateway that may be there is better than none.
func Choose(candidates []Candidate, current []string, ecmp bool) []string {
	chosen := fit(candidates, current)
	if !ecmp && len(chosen) > 1 {
		chosen = chosen[:1]
	}
	return chosen
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

// AnyUp reports whether one of the chosen is not down.
func AnyUp(candidates []Candidate, chosen []string) bool {
	return slices.ContainsFunc(candidates, func(c Candidate) bool { return c.State != Down && slices.Contains(chosen, c.Name) })
}
