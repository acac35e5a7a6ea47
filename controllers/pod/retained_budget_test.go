// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"github.com/kiln-net/kiln/controllers/controllertest"
	"github.com/kiln-net/kiln/controllers/pod"
	"github.com/kiln-net/kiln/controllers/pod/ipobject"
)

// TestANamespaceRetainsABoundedNumberOfAddresses deletes three pods of StatefulSets in a namespace that may retain two addresses.
func TestANamespaceRetainsABoundedNumberOfAddresses(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	bound := func(process *controllertest.Process) *controllertest.Process {
		return w.Restart(process, stepsWith(ipobject.Pace{}, func(r *pod.Reconciler) { r.MaxRetained = 2 }))
	}
	process := bound(nil)
	set, other := w.statefulSet("db", 0, 2), w.statefulSet("cache", 0, 1)
	first, second, third := replica(set, 0, "n1"), replica(set, 1, "n1"), replica(other, 0, "n2")
	for _, p := range []*corev1.Pod{first, second, third} {
		w.Create(p)
		w.allocated(p)
	}
	w.Delete(first)
	w.away(process, first)
	w.Delete(second)
	w.away(process, second)

	w.Delete(third)
	w.gone(process, third)
	w.Event(other, eventsv1.Event{Type: corev1.EventTypeWarning, Reason: "AddressNotRetained", Note: "namespace default retains 2 addresses of absent pods"})
	process = bound(process)
	w.away(process, first)
	w.away(process, second)

	// A pod that is created again takes its address out of the budget.
	was := address(first)
	first = replica(set, 0, "n1")
	w.Create(first)
	if w.allocated(first); address(first) != was {
		t.Errorf("the pod has %s again, want its retained address %s", address(first), was)
	}
	third = replica(other, 0, "n2")
	w.Create(third)
	w.allocated(third)
	w.Delete(third)
	w.away(process, third)
}
