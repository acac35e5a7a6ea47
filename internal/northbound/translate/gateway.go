// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net/netip"
	"strings"

	"github.com/kiln-net/kiln/internal/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// KindGateway is the kind of the owners of centralized gateways; they have the names of their subnets. The policies are not the subnet's
// own so that moving a gateway touches nothing else.
const KindGateway = "Gateway"

// GatewayOwner owns the policies that send what leaves a subnet through its gateway nodes.
func GatewayOwner(subnet string) desired.Owner { return desired.Owner{Kind: KindGateway, Name: subnet} }

// GatewayInputs are what the centralized gateway of a subnet follows from.
type GatewayInputs struct {
	Vpc string
	// CIDRs of the subnet, one per family.
	CIDRs []netip.Prefix
	// NextHops are the addresses of the gateway nodes on the join switch, of both families. Several of one share the connections.
	NextHops []netip.Addr
}

// Gateway returns one policy per family: what leaves the subnet goes to the gateway nodes, and nowhere while there is none. It counts
// before the policies of distributed gateways, whose port groups the subnet's pods are in as well: so a subnet changes from one kind to
// the other at once, and nothing of its pods is touched.
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
		rows = append(rows, desired.Row{Key: "policy/" + familyKey(cidr.Addr()), Model: policy, Parent: &policies})
	}
	return rows
}

// GatewayCIDR is the prefix whose traffic a policy of Gateway is about. It is false when someone else has written the policy.
func GatewayCIDR(policy *nb.LogicalRouterPolicy) (netip.Prefix, bool) {
	_, value, _ := strings.Cut(policy.Match, " == ")
	cidr, err := netip.ParsePrefix(value)
	return cidr, err == nil
}
