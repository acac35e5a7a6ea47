// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod_test

import (
	"net/netip"
	"testing"

	"github.com/kiln-net/kiln/internal/address/ipam"
)

func TestPodsWaitForAPortOfAFullSwitch(t *testing.T) {
	w := newWorld(t)
	p := w.start()
	w.namespace("tight", nil)
	w.subnetIn(p, "tight", "10.30.0.0/24", serving("tight"))
	w.Must(p.Allocator.SetSubnet("tight", ipam.Subnet{
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.30.0.0/24")}, Gateways: []netip.Addr{netip.MustParseAddr("10.30.0.1")},
		OwnPorts: p.Engine.Capacity().Ports - 1,
	}))
	first := w.pod("tight", "first")
	second := newPod("tight", "second")
	w.Create(second)
	w.warned(second, "subnet tight is full: the switch has all 32767 ports that it can have")
	if w.portNow(second) != nil {
		t.Error("the second pod has a port")
	}
	w.Delete(first)
	w.allocated(second)
}
