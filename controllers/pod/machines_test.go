// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"testing"
)

func TestMachinesThatAreDefinedLater(t *testing.T) {
	w := newWorld(t)
	w.subnet("ovn-default", "10.16.0.0/24")
	process := w.start()
	runs := launcher("vm", "a", "n1")
	w.Create(runs)
	w.allocated(runs)
	w.ipObject(named("vm", runs))
	w.defineMachines()
	w.machine("vm")
	w.Delete(runs)
	w.away(process, named("vm", runs))
	single := launcher("single", "a", "n1") // an instance without a VirtualMachine
	w.Create(single)
	w.allocated(single)
	w.Delete(single)
	w.gone(process, named("single", single))
}
