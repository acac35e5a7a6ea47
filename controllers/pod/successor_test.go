// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
)

// withoutPort waits until a pod has no port, and its allocation is retained.
func (w world) withoutPort(process *controllertest.Process, was *corev1.Pod) {
	w.Helper()
	w.Eventually(func() string {
		if w.portNow(was) != nil {
			return "the port is there"
		}
		if allocation, held := process.Allocator.Lookup(was.Name + "." + was.Namespace); !held || joined(allocation.Addresses) != address(was) {
			return fmt.Sprintf("the address is not retained: %v", allocation)
		}
		return ""
	})
}

// rests waits until the controllers of pods and of IP objects have nothing to do. Two that undo each other's work never rest.
func (w world) rests() {
	w.Helper()
	passes := func() float64 { return reconciled(w.T, "pod") + reconciled(w.T, "ip") }
	w.Eventually(func() string {
		before := passes()
		time.Sleep(500 * time.Millisecond)
		if n := passes() - before; n > 0 {
			return fmt.Sprintf("%v more passes in half a second", n)
		}
		return ""
	})
}

// The successor exists before the controller has seen the deletion of the first pod.
func TestThePortGoesWithThePodAlsoWhenItsSuccessorHasToWait(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112")
	process := w.start()
	set := w.statefulSet("db", 0, 1)
	first := replica(set, 0, "n1")
	w.Create(first)
	w.allocated(first)
	w.ipObject(first)

	process.Stop()
	w.Delete(first)
	second := replica(set, 0, "n2", string(kubeovnv1.AnnotationIPPool), "nowhere")
	w.Create(second)
	process = w.start()
	w.warned(second, "nowhere")
	w.withoutPort(process, first)
	w.rests()
	if ip := w.ipObject(first); ip.Spec.NodeName != "" {
		t.Errorf("the IP object of the retained address says that it is on node %s", ip.Spec.NodeName)
	}
	if n := w.events(second, "AcquireAddressFailed"); n != 1 {
		t.Errorf("the waiting pod has %d events, want 1", n)
	}

	w.Change(second, func() { delete(second.Annotations, kubeovnv1.AnnotationIPPool.Key()) })
	w.allocated(second)
	if address(second) != address(first) {
		t.Errorf("the pod had %s, its successor has %s", address(first), address(second))
	}
}

// A user reserves the address of a StatefulSet's pod. The reservation has precedence over what the pod requests.
func TestAReservationIsForTheReplicaOfItsName(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24,fd00:10:16::/112")
	w.subnet("reserved", "10.17.0.0/24")
	process := w.start()
	set := w.statefulSet("db", 0, 2)
	for i, subnet := range []string{"ovn-default", "reserved"} {
		name := fmt.Sprintf("db-%d.default", i)
		address := map[string]string{"ovn-default": "10.16.0.40", "reserved": "10.17.0.40"}[subnet]
		w.Create(reservation(name, kubeovnv1.IPSpec{PodName: fmt.Sprintf("db-%d", i), Namespace: "default", Subnet: subnet, V4IPAddress: address}))
		w.held(process, name, address)
		p := replica(set, i, "n1", string(kubeovnv1.AnnotationIPPool), "nowhere")
		w.Create(p)
		w.allocated(p)
		if got := w.get(p).Annotations[kubeovnv1.AnnotationIPAddress.Key()]; got != address {
			t.Errorf("the pod has %s, not %s, which is reserved for it", got, address)
		}
	}
	w.rests()
}
