// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kiln-net/kiln/agent/agenttest"
	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// followsTheOverlay interconnects the subnet of a running pod, adds an overlay subnet and ends the interconnection.
func followsTheOverlay(n *agenttest.Node, c *agenttest.Container, subnet *v1.Subnet) {
	n.Helper()
	router := func(address string) {
		must.Succeed(n.TB, n.API.Get(n.Context(), client.ObjectKeyFromObject(subnet), subnet))
		base := subnet.DeepCopy()
		subnet.Status.U2OInterconnectionIP = address
		must.Succeed(n.TB, n.API.Status().Patch(n.Context(), subnet, client.MergeFrom(base)))
	}
	routes := func(what string, via string, want ...string) {
		n.Helper()
		var got []string
		slices.Sort(want)
		n.Cleanup(func() {
			if n.Failed() {
				n.Logf("%s: routes are %v, want %v", what, got, want)
			}
		})
		n.Eventually(what, func() bool {
			got = nil
			c.Do(func() error {
				list, err := netlinksafe.RouteList(nil, netlink.FAMILY_V4)
				for _, r := range list {
					if r.Gw != nil && r.Gw.String() == via {
						got = append(got, r.Dst.String())
					}
				}
				return err
			})
			slices.Sort(got)
			return slices.Equal(got, want)
		})
	}
	overlay := []string{"10.96.0.0/12"}
	var services networkingv1.ServiceCIDRList
	must.Succeed(n.TB, n.API.List(n.Context(), &services))
	for _, s := range services.Items {
		overlay = append(overlay, s.Spec.CIDRs[0])
	}
	var subnets v1.SubnetList
	must.Succeed(n.TB, n.API.List(n.Context(), &subnets))
	for _, s := range subnets.Items {
		if cidrs, err := ipfamily.ParseCIDRs(s.Spec.CIDRBlock); err == nil && s.Name != subnet.Name {
			overlay = append(overlay, cidrs[0].Masked().String())
		}
	}
	routes("no routes to the overlay", "10.30.0.1")
	router("10.30.0.1")
	routes("routes to the overlay", "10.30.0.1", overlay...)
	n.Create(agenttest.SubnetOf("late", "10.50.0.0/24,fd00:50::/64"))
	routes("a route to a later subnet", "10.30.0.1", append(overlay, "10.50.0.0/24")...)
	router("10.30.0.2")
	routes("routes through the router's other address", "10.30.0.2", append(overlay, "10.50.0.0/24")...)
	routes("no routes through its former address", "10.30.0.1")
	must.Succeed(n.TB, c.Check())
	router("")
	routes("the routes are gone", "10.30.0.2")
	must.Succeed(n.TB, c.Check())
}
