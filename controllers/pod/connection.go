// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/grants"
	"github.com/kiln-net/kiln/internal/address/ipam"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/limits"
	"github.com/kiln-net/kiln/internal/lookup"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// connection is a port with its allocation and the settings of the subnet that it needs.
type connection struct {
	*subject
	allocation ipam.Allocation
	subnet     *kubeovnv1.Subnet
	cidrs      []netip.Prefix
	gateways   []netip.Addr
	shared     []netip.Addr // addresses of Vips that a port with port security accepts as well
	dhcp       []translate.PodDHCP
	underlay   *underlay     // of an underlay subnet, or nil
	secure     bool          // the port drops packets from addresses other than its own
	groups     grants.Groups // security groups of the pod
	limits     limits.Port   // of the port
	metered    bool          // the datapath needs meters of OVN for the limits
	adjusted   []string      // how limits differ from the pod's requests
}

// inputs returns the inputs of the port's rows.
func (c *connection) inputs(policy translate.PodPolicy) translate.PodInputs {
	shared, _ := splitShared(c.subnet, c.asks.Vips)
	in := translate.PodInputs{
		Namespace:    c.port.Namespace,
		Name:         c.port.Owner,
		Provider:     c.port.Provider,
		Node:         c.pod.Spec.NodeName,
		Subnet:       c.subnet.Name,
		Vpc:          lookup.VpcOf(c.subnet),
		Addresses:    c.allocation.Addresses,
		MAC:          c.allocation.MAC,
		OwnDHCP:      c.dhcp,
		Vips:         shared,
		NorthGateway: c.asks.NorthGateway,
		Unknown:      c.asks.forwards && !c.secure,
		Shared:       c.shared,
		PortSecurity: c.secure,
		Quiet:        c.underlay != nil && !runs(c.pod) && !slices.ContainsFunc(c.others, runs),
		Policy:       policy,
	}
	if c.subnet.Spec.EnableDHCP {
		in.DHCP = c.cidrs
	}
	if c.subnet.Spec.PhysicalGateway() { // its traffic leaves through no node
		in.Vpc, in.NorthGateway = "", nil
	}
	if c.metered {
		in.Ingress, in.Egress = meterOf(c.limits.Ingress), meterOf(c.limits.Egress)
	}
	if c.machine == "" {
		in.UID = string(c.pod.UID)
	}
	for _, other := range c.others {
		in.Others = append(in.Others, other.Spec.NodeName)
	}
	return in
}

// meterOf returns the meter of a limit.
func meterOf(r limits.Rate) translate.Meter {
	return translate.Meter{Rate: limits.Kilo(r.Bits), Burst: limits.Kilo(r.Burst)}
}

// runs reports whether a pod has its network: then its node has found no other host with its addresses. A pod does not run while its node has not yet looked.
func runs(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }

// network returns the settings that the agent needs to connect one of the pods.
func (c *connection) network(pod *corev1.Pod) kubeovnv1.PodNetwork {
	network := kubeovnv1.PodNetwork{
		Provider:      c.port.Provider,
		UID:           pod.UID,
		Allocated:     true,
		Routed:        true,
		Addresses:     c.allocation.Addresses,
		MAC:           c.allocation.MAC,
		CIDRs:         c.cidrs,
		Gateways:      c.gateways,
		LogicalSwitch: c.subnet.Name,
		LogicalRouter: lookup.VpcOf(c.subnet),
		MTU:           int(c.subnet.Spec.MTU),
		NICType:       kubeovnv1.PodNICTypeVeth,
		Machine:       c.machine,
		Groups:        c.groups.In,
	}
	if c.underlay != nil {
		network.ProviderNetwork, network.VLAN = c.underlay.network, c.underlay.tag
	}
	return network
}

// splitShared divides the addresses that a pod requests to share into vips of the subnet and others, which are ignored: otherwise the pod could choose the
// addresses from which its port may send.
func splitShared(subnet *kubeovnv1.Subnet, asked []netip.Addr) (shared, others []netip.Addr) {
	if len(asked) == 0 {
		return nil, nil
	}
	offered := ipfamily.ValidAddrs(subnet.Spec.Vips...)
	for _, address := range asked {
		if slices.Contains(offered, address) {
			shared = append(shared, address)
		} else {
			others = append(others, address)
		}
	}
	return shared, others
}
