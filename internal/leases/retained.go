// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package leases

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// Retained are the leases that no pod has: leases of absent pods whose workload will recreate them by name, and reservations
// by users. Outside this process only their IP objects record them.
type Retained struct {
	mu      sync.Mutex
	leases  map[types.NamespacedName]string // values of IPSpec.PodType, empty for a user's reservation
	byOwner map[types.NamespacedName]map[types.NamespacedName]struct{}
	// forWorkloads counts the leases of each namespace that are retained for workloads.
	forWorkloads map[string]int
}

// Put adds a lease that is retained for a workload kind, a value of IPSpec.PodType; empty for a user's reservation.
func (k *Retained) Put(key types.NamespacedName, podType string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(key)
	if k.leases == nil {
		k.leases, k.byOwner, k.forWorkloads = map[types.NamespacedName]string{}, map[types.NamespacedName]map[types.NamespacedName]struct{}{}, map[string]int{}
	}
	k.leases[key] = podType
	if podType != "" {
		k.forWorkloads[key.Namespace]++
	}
	owner, _ := StatefulSetOf(key)
	if k.byOwner[owner] == nil {
		k.byOwner[owner] = map[types.NamespacedName]struct{}{}
	}
	k.byOwner[owner][key] = struct{}{}
}

// PodType returns the workload kind for which a lease is retained; false if the lease is not retained.
func (k *Retained) PodType(key types.NamespacedName) (string, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	podType, ok := k.leases[key]
	return podType, ok
}

// ForWorkloads returns the number of leases of a namespace that are retained for workloads. Tenants cause these; only administrators reserve others.
func (k *Retained) ForWorkloads(namespace string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.forWorkloads[namespace]
}

// Forget removes a lease.
func (k *Retained) Forget(key types.NamespacedName) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(key)
}

func (k *Retained) drop(key types.NamespacedName) {
	owner, _ := StatefulSetOf(key)
	if k.leases[key] != "" {
		if k.forWorkloads[key.Namespace]--; k.forWorkloads[key.Namespace] == 0 {
			delete(k.forWorkloads, key.Namespace)
		}
	}
	delete(k.leases, key)
	delete(k.byOwner[owner], key)
	if len(k.byOwner[owner]) == 0 {
		delete(k.byOwner, owner)
	}
}

// OfType lists the retained leases of a workload kind.
func (k *Retained) OfType(podType string) []types.NamespacedName {
	k.mu.Lock()
	defer k.mu.Unlock()
	var keys []types.NamespacedName
	for key, t := range k.leases {
		if t == podType {
			keys = append(keys, key)
		}
	}
	return keys
}

// Of lists the absent pods of an owner.
func (k *Retained) Of(owner types.NamespacedName) []types.NamespacedName {
	k.mu.Lock()
	defer k.mu.Unlock()
	keys := make([]types.NamespacedName, 0, len(k.byOwner[owner]))
	for key := range k.byOwner[owner] {
		keys = append(keys, key)
	}
	return keys
}
