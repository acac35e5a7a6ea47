// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"

	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// KindGateway is the kind of the owners of centralized gateways, which have the names of their subnets. The subnet does not own
// the policies, so that a gateway can move without a change of the subnet's rows.
const KindGateway = "Gateway"

// GatewayOwner owns the policies that send a subnet's egress traffic through its gateway nodes.
func GatewayOwner(subnet string) desired.Owner { return desired.Owner{Kind: KindGateway, Name: subnet} }

// GatewayInputs are the inputs of Gateway.
type GatewayInputs struct {
	Vpc string
	// CIDRs of the subnet, one per family.
	CIDRs []netip.Prefix
	// NextHops are the addresses of the gateway nodes on the join switch, of both families. Several of one family share the
	// connections (ECMP).
	NextHops []netip.Addr
}

// Gateway returns one policy per family: it reroutes the subnet's egress traffic to the gateway nodes, and drops it if there
// are none. Its priority is above the policies of distributed gateways, whose address sets contain the subnet's pods as well.
// Therefore a subnet changes from one gateway type to the other at once, without a change of its pods' rows.
func Gateway(in GatewayInputs) []desired.Row {
	policies := desired.RouterPolicies(RouterRef(in.Vpc))
	rows := make([]desired.Row, 0, len(in.CIDRs))
	for _, cidr := range in.CIDRs {
		policy := &nb.LogicalRouterPolicy{
			Priority: priorityCentral,
			Match:    matchIP("src", cidr.Addr(), cidr.Masked().String()),
			Action:   nb.LogicalRouterPolicyActionDrop,
		}
		for _, hop := range in.NextHops {
			if ipfamily.Of(hop) == ipfamily.Of(cidr.Addr()) {
				policy.Action = nb.LogicalRouterPolicyActionReroute
				policy.Nexthops = append(policy.Nexthops, hop.String())
			}
		}
		rows = append(rows, desired.Row{Key: "policy/" + ipfamily.Of(cidr.Addr()).String(), Model: policy, Parent: &policies})
	}
	return rows
}
