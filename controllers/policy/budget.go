// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Bounds of the flows (translate.PolicyRule.Flows) that one NetworkPolicy, and all NetworkPolicies of a namespace, cost a node. ovn-controller
// takes 10 to 20 µs for each flow of a policy whenever it computes all flows (BenchmarkNetworks), and sets up no pod meanwhile: about 1 s for
// a policy at its bound, 5 to 10 s for a namespace. For comparison: the pods of a cluster of 500 nodes take 4 s.
const (
	maxPolicyFlows    = 1 << 16
	maxNamespaceFlows = 1 << 19
)

// maxPolicySets bounds the sets of pods of one NetworkPolicy. Each set adds two rows to the database, and an element to the row of each of its
// pods. A policy has a set for each selector and each named port, in egress for each pair of both.
const maxPolicySets = 1024

// budget adds up the flows of NetworkPolicies by namespace. A policy is within the bound when the sum of its flows and the flows of all
// older policies is. So a new or longer policy never excludes an older one, and a deletion never excludes any.
type budget struct {
	mu         sync.Mutex
	namespaces map[string][]expense // the oldest first
}

// expense is the cost of one policy.
type expense struct {
	created time.Time
	name    string
	flows   int
}

func (e expense) compare(other expense) int {
	return cmp.Or(e.created.Compare(other.created), cmp.Compare(e.name, other.name))
}

// set records the flows of a policy, 0 for a deleted one. It reports whether the policy is within the bound of its namespace, and returns the
// other policies for which that has changed.
func (b *budget) set(key client.ObjectKey, created time.Time, flows int) (fits bool, others []client.ObjectKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := b.namespaces[key.Namespace]
	before := limit(list)
	list = slices.DeleteFunc(list, func(e expense) bool { return e.name == key.Name })
	if flows > 0 {
		e := expense{created: created, name: key.Name, flows: flows}
		i, _ := slices.BinarySearchFunc(list, e, expense.compare)
		list = slices.Insert(list, i, e)
	}
	if b.namespaces == nil {
		b.namespaces = map[string][]expense{}
	}
	if b.namespaces[key.Namespace] = list; len(list) == 0 {
		delete(b.namespaces, key.Namespace)
	}
	after := limit(list)
	fits = true
	for _, e := range list {
		switch {
		case e.name == key.Name:
			fits = e.within(after)
		case e.within(before) != e.within(after):
			others = append(others, client.ObjectKey{Namespace: key.Namespace, Name: e.name})
		}
	}
	return fits, others
}

// limit returns the oldest policy of a namespace that is not within its bound: neither is any that is younger. It is nil when all are.
func limit(list []expense) *expense {
	total := 0
	for _, e := range list {
		if total += e.flows; total > maxNamespaceFlows {
			return &e
		}
	}
	return nil
}

func (e expense) within(limit *expense) bool { return limit == nil || e.compare(*limit) < 0 }
