// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// checkDatapath detects at the start a configuration that would otherwise fail later with a less clear error.
func checkDatapath(o Options) error {
	if o.Datapath == v1alpha1.DatapathKernel {
		// The query for the family makes the kernel load the module, if it is installed.
		if _, err := netlink.GenlFamilyGet("ovs_datapath"); err != nil {
			return noKernelDatapath(o.Node, err)
		}
		return nil
	}
	if o.TunnelInterface == "" {
		return errors.New("with spec.nodes.datapath Userspace, spec.nodes.tunnelInterface of the OVNCluster must name an interface: " +
			"it becomes a port of br-phy, so it must not be the one that reaches the API server")
	}
	return nil
}

func noKernelDatapath(node string, err error) error {
	return fmt.Errorf("the kernel of node %s has no Open vSwitch datapath (%w): load the module openvswitch, "+
		"or set spec.nodes.datapath of the OVNCluster to Userspace", node, err)
}
