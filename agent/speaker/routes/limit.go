// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/serving/budget"
)

// limit records how many prefixes an object requests, and reports whether it is within the limit of its namespace. The oldest objects of the namespace
// count first, and the number does not depend on the node or on the readiness of endpoints: so all nodes announce the same objects.
func (t *Table) limit(owner Owner, created time.Time, prefixes int) (within bool) {
	verdict, others := t.requests.Set(t.bounds(), budget.Object{Key: keyOf(owner), Group: owner.Namespace, Created: created, Cost: prefixes})
	t.exceeds(owner, prefixes > 0 && verdict != budget.Within)
	for _, key := range others {
		other := ownerOf(key)
		if within := t.requests.Verdict(t.bounds(), key) == budget.Within; within != t.excess[other] {
			continue // offered with this verdict already
		}
		if other.Kind == kubeovnv1.OnPod {
			t.offerPort(other)
		} else {
			t.offerService(other.NamespacedName)
		}
	}
	return verdict == budget.Within
}

func (t *Table) bounds() budget.Bounds { return budget.Bounds{Group: t.settings.MaxPrefixes} }

func (t *Table) exceeds(owner Owner, exceeds bool) {
	switch {
	case !exceeds:
		delete(t.excess, owner)
	case !t.excess[owner]:
		t.excess[owner] = true
		t.unreported = append(t.unreported, owner)
	}
}

// keyOf returns the key of an object in the budget, and ownerOf is its inverse. A pod and a Service may have the same name.
func keyOf(o Owner) types.NamespacedName {
	return types.NamespacedName{Namespace: o.Namespace, Name: o.Name + "/" + o.Kind + "/" + o.Provider}
}

func ownerOf(key types.NamespacedName) Owner {
	name, rest, _ := strings.Cut(key.Name, "/")
	kind, provider, _ := strings.Cut(rest, "/")
	return Owner{kind, types.NamespacedName{Namespace: key.Namespace, Name: name}, provider}
}

// beyond returns the offer of an object beyond the limit of its namespace.
func (t *Table) beyond(namespace string) offer {
	return refuse(fmt.Sprintf("older pods and Services of namespace %s announce spec.speaker.maxPrefixesPerNamespace (%d) prefixes: remove annotations %s, or raise the limit",
		namespace, t.settings.MaxPrefixes, kubeovnv1.AnnotationBGP.Key()))
}

// NewExcess returns the objects that are beyond the limit of their namespaces since the last call, with the reasons.
func (t *Table) NewExcess() map[Owner]string {
	reasons := map[Owner]string{}
	for _, owner := range t.unreported {
		if t.excess[owner] {
			reasons[owner] = t.beyond(owner.Namespace).refused
		}
	}
	t.unreported = nil
	return reasons
}

// Excess returns how many objects of each namespace are beyond its limit.
func (t *Table) Excess() map[string]int {
	counts := map[string]int{}
	for owner := range t.excess {
		counts[owner.Namespace]++
	}
	return counts
}

// Reports reports whether this node sends the events about objects: it is the first by name of the fittest nodes with a speaker.
func (t *Table) Reports() bool {
	own, found := t.nodes[t.node]
	selector := labels.SelectorFromSet(t.settings.Nodes)
	for name, n := range t.nodes {
		if selector.Matches(labels.Set(n.labels)) && (n.fitness < own.fitness || n.fitness == own.fitness && name < t.node) {
			return false
		}
	}
	return found
}
