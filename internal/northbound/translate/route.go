// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/address/ipfamily"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// StaticRoute is a user's static route of a router. Routes of one prefix share the traffic.
type StaticRoute struct {
	Prefix netip.Prefix
	// BySource matches Prefix against the source address of packets.
	BySource bool
	NextHop  netip.Addr
	// Table of the route; the main one when empty.
	Table string
	// SymmetricReply keeps replies on the route that the request came over.
	SymmetricReply bool
	// Monitored makes the route depend on a BFD session with NextHop, if that is in an external subnet.
	Monitored bool
}

// competes reports whether two routes match the same packets, so that the router chooses one or shares the traffic between
// them.
func (r StaticRoute) competes(other StaticRoute) bool {
	return r.Prefix == other.Prefix && r.BySource == other.BySource && r.Table == other.Table
}

// key identifies the route; columns that are not part of it may change.
func (r StaticRoute) key() string {
	side := "dst"
	if r.BySource {
		side = "src"
	}
	key := "route/" + side + "/" + r.Prefix.String() + "/" + r.NextHop.String()
	if r.Table != "" {
		key += "/" + r.Table
	}
	return key
}

func (r StaticRoute) model() *nb.LogicalRouterStaticRoute {
	model := &nb.LogicalRouterStaticRoute{
		IPPrefix:   r.Prefix.String(),
		Nexthop:    r.NextHop.String(),
		Policy:     new(nb.LogicalRouterStaticRoutePolicyDstIP),
		RouteTable: r.Table,
	}
	if r.BySource {
		model.Policy = new(nb.LogicalRouterStaticRoutePolicySrcIP)
	}
	if r.SymmetricReply {
		model.Options = map[string]string{"ecmp_symmetric_reply": "true"}
	}
	return model
}

// staticRoutes are the user's routes.
func staticRoutes(in VpcInputs) []desired.Row {
	routes := desired.RouterRoutes(RouterRef(in.Name))
	var rows []desired.Row
	for _, route := range in.Routes {
		row := desired.Row{Key: route.key(), Model: route.model(), Parent: &routes}
		if route.Monitored { // the session comes and goes with the external port
			row.References = []desired.Reference{{Column: "bfd", To: []desired.Ref{ExternalBFDRef(in.Name, route.NextHop)}, Optional: true}}
		}
		rows = append(rows, row)
	}
	return rows
}

// PolicyRoute is a user's policy of a router. Match is validated.
type PolicyRoute struct {
	Priority int
	Match    string
	Action   kubeovnv1.PolicyRouteAction
	// NextHops of a reroute. Several of one family share the traffic; with both families, each serves the packets of its own
	// family.
	NextHops []netip.Addr
}

var policyActions = map[kubeovnv1.PolicyRouteAction]nb.LogicalRouterPolicyAction{
	kubeovnv1.PolicyRouteAllow:   nb.LogicalRouterPolicyActionAllow,
	kubeovnv1.PolicyRouteDrop:    nb.LogicalRouterPolicyActionDrop,
	kubeovnv1.PolicyRouteReroute: nb.LogicalRouterPolicyActionReroute,
}

// policyRoutes are the rows of one policy: one row, or for a reroute one per family of its next hops.
func policyRoutes(vpc string, p PolicyRoute) []desired.Row {
	policies := desired.RouterPolicies(RouterRef(vpc))
	sum := sha256.Sum256([]byte(p.Match))
	key := fmt.Sprintf("policy/%d/%s", p.Priority, hex.EncodeToString(sum[:10]))
	row := func(key, match string, hops []netip.Addr) desired.Row {
		model := &nb.LogicalRouterPolicy{Priority: p.Priority, Match: match, Action: policyActions[p.Action]}
		for _, hop := range hops {
			model.Nexthops = append(model.Nexthops, hop.String())
		}
		return desired.Row{Key: key, Model: model, Parent: &policies}
	}
	if p.Action != kubeovnv1.PolicyRouteReroute {
		return []desired.Row{row(key, p.Match, nil)}
	}
	byFamily := map[ipfamily.Family][]netip.Addr{}
	for _, hop := range p.NextHops {
		byFamily[ipfamily.Of(hop)] = append(byFamily[ipfamily.Of(hop)], hop)
	}
	var rows []desired.Row
	for _, family := range []ipfamily.Family{ipfamily.IPv4, ipfamily.IPv6} {
		hops := byFamily[family]
		if len(hops) == 0 {
			continue
		}
		match := p.Match
		if len(byFamily) > 1 {
			match = familyName(ipfamily.Of(hops[0])) + " && (" + match + ")"
		}
		rows = append(rows, row(key+"/"+family.String(), match, hops))
	}
	return rows
}

// Peering is a router's end of a link to another router.
type Peering struct {
	Remote string
	// Addresses of this end with the prefix lengths of the link, at most one per family.
	Addresses []netip.Prefix
	// NameTaken and RemoteNameTaken are set if another object has the name of this end's port, or of the remote one.
	NameTaken, RemoteNameTaken bool
}

// peerPort is the router's port of a link.
func peerPort(vpc string, p Peering) desired.Row {
	ports := desired.RouterPorts(RouterRef(vpc))
	networks := make([]string, 0, len(p.Addresses))
	for _, address := range p.Addresses {
		networks = append(networks, address.String())
	}
	return desired.Row{
		Key: keyPeer + p.Remote,
		Model: &nb.LogicalRouterPort{
			Name:     PeerPort(vpc, p.Remote, p.NameTaken),
			MAC:      gatewayMAC(p.Addresses[0].Addr()).String(),
			Networks: networks,
			Peer:     new(PeerPort(p.Remote, vpc, p.RemoteNameTaken)),
		},
		Parent: &ports,
	}
}
