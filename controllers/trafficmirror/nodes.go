// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trafficmirror

import (
	"context"
	"maps"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/validation"
)

// nodes counts the TrafficMirrors that have ports on each node. The first MaxPerNode of them get their ports there. One worker uses it.
type nodes struct {
	primed bool
	of     map[string]map[string]bool      // the nodes of a mirror
	on     map[string]map[string]candidate // the mirrors on a node
}

// candidate is a TrafficMirror with ports on a node. byLabels: it selects pods by their labels, which users write, also those in its VPC or namespaces.
type candidate struct {
	object   client.Object
	byLabels bool
}

func candidateOf(mirror client.Object, spec *kubeovnv1.TrafficMirrorSpec) candidate {
	_, ofPods, _ := validation.TrafficMirror(spec)
	return candidate{mirror, !ofPods.Empty()}
}

// precedes reports whether a mirror takes precedence over another one on a node. Mirrors by labels of pods come last: otherwise a user could bring old ones to
// a node by labels of own pods there, and displace others.
func (c candidate) precedes(other candidate) bool {
	if c.byLabels != other.byLabels {
		return other.byLabels
	}
	return lookup.Precedes(c.object, other.object)
}

// set replaces the nodes of a mirror. It returns the other mirrors for which that can decide whether a node admits them. A mirror without nodes is empty.
func (n *nodes) set(name string, mirror candidate, wanted map[string]bool) (affected []string) {
	if n.of == nil {
		n.of, n.on = map[string]map[string]bool{}, map[string]map[string]candidate{}
	}
	others := map[string]bool{}
	altered := changed(n.of[name], wanted)
	for node := range wanted {
		if have, known := n.on[node][name]; known && have.byLabels != mirror.byLabels {
			altered[node] = true
		}
	}
	for node := range altered {
		before := len(n.on[node])
		if wanted[node] {
			if n.on[node] == nil {
				n.on[node] = map[string]candidate{}
			}
			n.on[node][name] = mirror
		} else if delete(n.on[node], name); len(n.on[node]) == 0 {
			delete(n.on, node)
		}
		if max(before, len(n.on[node])) > MaxPerNode {
			for other := range n.on[node] {
				others[other] = true
			}
		}
	}
	n.of[name] = wanted
	if len(wanted) == 0 {
		delete(n.of, name)
	}
	delete(others, name)
	return slices.Sorted(maps.Keys(others))
}

// changed returns the nodes that are in one of two sets only.
func changed(before, after map[string]bool) map[string]bool {
	out := map[string]bool{}
	for node := range before {
		out[node] = !after[node]
	}
	for node := range after {
		out[node] = !before[node]
	}
	maps.DeleteFunc(out, func(_ string, differs bool) bool { return !differs })
	return out
}

// admits reports whether a mirror is one of the first on a node.
func (n *nodes) admits(name, node string) bool {
	before, mirror := 0, n.on[node][name]
	for other, c := range n.on[node] {
		if other != name && c.precedes(mirror) {
			before++
		}
	}
	return before < MaxPerNode
}

// prime counts all mirrors before the first is applied: otherwise a young one would be applied on a node that older ones fill.
func (r *Reconciler) prime(ctx context.Context, all []kubeovnv1.TrafficMirror) error {
	if r.nodes.primed {
		return nil
	}
	for i := range all {
		spec := appliedSpec(&all[i])
		if spec == nil || all[i].DeletionTimestamp != nil || conflictOf(&all[i], spec, all) != "" {
			continue
		}
		s, err := r.selected(ctx, spec, all)
		if err != nil {
			return err
		}
		r.nodes.set(all[i].Name, candidateOf(&all[i], spec), nodesOf(s.ports))
	}
	r.nodes.primed = true
	return nil
}

func (r *Reconciler) enqueue(names []string) {
	for _, name := range names {
		r.again.Add(name)
	}
}
