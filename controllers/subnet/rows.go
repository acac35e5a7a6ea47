// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"net/netip"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/k8s"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// rowInputs returns the inputs for the rows of a subnet with a valid spec. localnet is nil for an overlay subnet.
func rowInputs(in inputs, c checked, localnet *translate.Localnet) translate.SubnetInputs {
	spec, vpc := &in.subnet.Spec, ""
	if in.vpc != nil {
		vpc = in.vpc.Name
	}
	return translate.SubnetInputs{
		Name:              in.subnet.Name,
		Vpc:               vpc,
		NameTaken:         in.nameTaken,
		Localnet:          localnet,
		CIDRs:             c.network.CIDRs,
		Gateways:          c.network.Gateways,
		Services:          k8s.ServesServices(in.subnet),
		MTU:               int(spec.MTU),
		RouteTable:        spec.RouteTable,
		Private:           spec.Private,
		AllowSubnets:      c.features.AllowSubnets,
		NodeCIDRs:         in.nodeCIDRs(),
		ACLs:              spec.ACLs,
		LogDrops:          in.logLeft > 0,
		AllowEWTraffic:    spec.AllowEWTraffic,
		VirtualPorts:      in.virtualPorts(c.features.Vips),
		Proxied:           in.balanced,
		MulticastSnooping: spec.EnableMulticastSnoop,
		Querier:           c.querier,
		DHCP:              spec.EnableDHCP,
		DHCPOptions:       c.features.DHCPOptions,
		IPv6RA:            spec.EnableIPv6RA,
		IPv6RAConfigs:     c.features.RouterAdvertisements,
	}
}

// nodeCIDRs returns the CIDRs from which nodes reach the pods of the subnet's VPC: the CIDRs of the subnet `join` in the default VPC, none
// in other VPCs.
func (in inputs) nodeCIDRs() []netip.Prefix {
	if in.join == nil {
		return nil
	}
	cidrs, _ := ipfamily.ParseCIDRs(in.join.Spec.CIDRBlock)
	return cidrs
}

// setOptionRows writes the UUIDs of the DHCP_Options rows of a subnet into its status.
func setOptionRows(subnet *kubeovnv1.Subnet) {
	cidrs, _ := ipfamily.ParseCIDRs(subnet.Spec.CIDRBlock)
	uuids := map[ipfamily.Family]*string{
		ipfamily.IPv4: &subnet.Status.DHCPV4OptionsUUID, ipfamily.IPv6: &subnet.Status.DHCPV6OptionsUUID,
	}
	for _, uuid := range uuids {
		*uuid = ""
	}
	for _, cidr := range cidrs {
		if family := ipfamily.Of(cidr.Addr()); subnet.Spec.EnableDHCP {
			*uuids[family] = translate.DHCPRef(subnet.Name, family).UUID()
		}
	}
}
