// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/controllers/controllertest"
)

// withoutPort waits until a pod has no port, and its lease is retained.
func (w world) withoutPort(process *controllertest.Process, was *corev1.Pod) {
	w.Helper()
	w.Eventually(func() string {
		if w.portNow(was) != nil {
			return "the port is there"
		}
		if lease, held := process.Allocator.Lookup(was.Name + "." + was.Namespace); !held || joined(lease.Addresses) != address(was) {
			return fmt.Sprintf("the address is not retained: %v", lease)
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
	w.record(first)

	process.Stop()
	w.Delete(first)
	second := replica(set, 0, "n2", string(kubeovnv1.AnnotationIPPool), "nowhere")
	w.Create(second)
	process = w.start()
	w.warned(second, "nowhere")
	w.withoutPort(process, first)

	w.Change(second, func() { delete(second.Annotations, kubeovnv1.AnnotationIPPool.Key()) })
	w.allocated(second)
	if address(second) != address(first) {
		t.Errorf("the pod had %s, its successor has %s", address(first), address(second))
	}
}
