// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/allocations"
)

// State is the state of the allocation of a port.
type State int

// States.
const (
	// Free: the port has no addresses, or they have no further use.
	Free State = iota
	// Held: a pod has the addresses, or had them until it was deleted.
	Held
	// Retained: the pod is absent, and its workload creates a pod of the same name again.
	Retained
	// Reserved: a user's IP object reserves addresses for the port, which no pod has.
	Reserved
)

// cause is an event that may change the state of an allocation.
type cause int

const (
	// gained: a pod gets the addresses.
	gained cause = iota
	// reserved: no pod has the port, and a user's IP object reserves addresses for it.
	reserved
	// awaited: no pod has the port, and its workload creates a pod of the same name again.
	awaited
	// deleted: as awaited, and a user has deleted the IP object, which frees the addresses.
	deleted
	// excess: as awaited, but the namespace retains too many addresses. Addresses that are retained already stay so.
	excess
	// ended: no pod has the port, and none of these applies.
	ended
)

// next has the state after an event, by the state before it. While pods are absent, only the IP object records the state for the next process.
var next = map[cause]map[State]State{
	gained:   {Free: Held, Held: Held, Retained: Held, Reserved: Held},
	reserved: {Free: Reserved, Held: Reserved, Retained: Reserved, Reserved: Reserved},
	awaited:  {Free: Free, Held: Retained, Retained: Retained, Reserved: Retained},
	deleted:  {Free: Free, Held: Retained, Retained: Free, Reserved: Free},
	excess:   {Free: Free, Held: Free, Retained: Retained, Reserved: Retained},
	ended:    {Free: Free, Held: Free, Retained: Free, Reserved: Free},
}

// absent is an allocation that no pod has.
type absent struct {
	port  kubeovnv1.Port
	state State
	// podType is the kind of workload that creates the pod again, a value of IPSpec.PodType; empty for a reservation.
	podType string
	// recorded is true once the IP object has this state. Until then the port stays in the northbound database: a new process could not restore the allocation.
	recorded bool
}

// states are the allocations that no pod has, by the names of their ports. An allocation that is not listed is Held, if the allocator has it, or else Free.
type states struct {
	mu          sync.Mutex
	allocations map[string]absent
	byOwner     map[types.NamespacedName]map[string]struct{} // by the StatefulSet
	// forWorkloads counts the allocations of each namespace that are retained for workloads.
	forWorkloads map[string]int
}

// put sets the allocation of a port that no pod has.
func (s *states) put(allocation absent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(allocation.port.Name)
	if s.allocations == nil {
		s.allocations, s.byOwner, s.forWorkloads = map[string]absent{}, map[types.NamespacedName]map[string]struct{}{}, map[string]int{}
	}
	s.allocations[allocation.port.Name] = allocation
	if allocation.state == Retained {
		s.forWorkloads[allocation.port.Namespace]++
	}
	owner, _ := allocations.StatefulSetOf(allocation.port.Key())
	if s.byOwner[owner] == nil {
		s.byOwner[owner] = map[string]struct{}{}
	}
	s.byOwner[owner][allocation.port.Name] = struct{}{}
}

// record sets recorded, and returns the allocation of a port and whether that is a change.
func (s *states) record(port string) (allocation absent, changed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	allocation, ok := s.allocations[port]
	if !ok || allocation.recorded {
		return allocation, false
	}
	allocation.recorded = true
	s.allocations[port] = allocation
	return allocation, true
}

// of returns the allocation of a port that no pod has; its state is Held for another port.
func (s *states) of(port string) absent {
	s.mu.Lock()
	defer s.mu.Unlock()
	if allocation, ok := s.allocations[port]; ok {
		return allocation
	}
	return absent{state: Held}
}

// retainedIn returns the number of allocations of a namespace that are retained for workloads. Tenants cause these; only administrators reserve others.
func (s *states) retainedIn(namespace string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forWorkloads[namespace]
}

// forget removes the allocation of a port, and reports whether there was one.
func (s *states) forget(port string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drop(port)
}

func (s *states) drop(port string) bool {
	allocation, ok := s.allocations[port]
	if !ok {
		return false
	}
	if allocation.state == Retained {
		if s.forWorkloads[allocation.port.Namespace]--; s.forWorkloads[allocation.port.Namespace] == 0 {
			delete(s.forWorkloads, allocation.port.Namespace)
		}
	}
	delete(s.allocations, port)
	owner, _ := allocations.StatefulSetOf(allocation.port.Key())
	if delete(s.byOwner[owner], port); len(s.byOwner[owner]) == 0 {
		delete(s.byOwner, owner)
	}
	return true
}

// ofType lists the keys of the allocations that are retained for a kind of workload.
func (s *states) ofType(podType string) []types.NamespacedName {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []types.NamespacedName
	for _, allocation := range s.allocations {
		if allocation.podType == podType {
			keys = append(keys, allocation.port.Key())
		}
	}
	return keys
}

// ofSet lists the keys of the absent pods of a StatefulSet.
func (s *states) ofSet(set types.NamespacedName) []types.NamespacedName {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]types.NamespacedName, 0, len(s.byOwner[set]))
	for port := range s.byOwner[set] {
		keys = append(keys, s.allocations[port].port.Key())
	}
	return keys
}
