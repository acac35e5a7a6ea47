// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"github.com/osrg/gobgp/v4/api"

	"github.com/kiln-net/kiln/api/v1alpha1"
)

// Names in GoBGP.
const (
	importPolicy = "import"
	exportPolicy = "export"
	anyPeer      = "any-peer"
	globalTable  = "global"
)

// policies returns the policies of the sessions, one for each peer of c. No route of a peer is imported, so none is passed on to another peer. Each peer gets its own
// communities, preference and next hops.
func policies(c *Config) *api.SetPoliciesRequest {
	request := &api.SetPoliciesRequest{
		DefinedSets: []*api.DefinedSet{{DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR, Name: anyPeer, List: []string{"0.0.0.0/0", "::/0"}}},
		Policies: []*api.Policy{
			{Name: importPolicy, Statements: []*api.Statement{{
				Name: "ignore", Conditions: of(anyPeer), Actions: &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_REJECT},
			}}},
		},
	}
	export := &api.Policy{Name: exportPolicy, Statements: []*api.Statement{{Name: "all", Conditions: of(anyPeer), Actions: &api.Actions{}}}}
	for _, p := range c.Peers {
		name := p.Address.String()
		request.DefinedSets = append(request.DefinedSets, &api.DefinedSet{
			DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR, Name: name, List: []string{name},
		})
		export.Statements = append(export.Statements, p.statements(c)...)
	}
	request.Policies = append(request.Policies, export)
	return request
}

func of(set string) *api.Conditions {
	return &api.Conditions{NeighborSet: &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: set}}
}

// statements returns the changes of the routes for a peer.
func (p Peer) statements(c *Config) []*api.Statement {
	name := p.Address.String()
	var all []*api.Statement
	if len(p.Communities) > 0 || p.LocalPreference != nil {
		actions := &api.Actions{}
		if len(p.Communities) > 0 {
			actions.Community = &api.CommunityAction{Type: api.CommunityAction_TYPE_ADD, Communities: p.Communities}
		}
		if p.LocalPreference != nil {
			actions.LocalPref = &api.LocalPrefAction{Value: uint32(*p.LocalPreference)} //nolint:gosec // limited by the API
		}
		all = append(all, &api.Statement{Name: name + " attributes", Conditions: of(name), Actions: actions})
	}
	for _, f := range p.families(c.Addresses) {
		is4 := f.Afi == api.Family_AFI_IP
		if is4 == p.Address.Is4() || is4 && p.extended() {
			continue // the node's address of the session
		}
		conditions := of(name)
		conditions.AfiSafiIn = []*api.Family{f}
		all = append(all, &api.Statement{
			Name: name + " next hop", Conditions: conditions,
			Actions: &api.Actions{Nexthop: &api.NexthopAction{Address: ofFamily(c.Addresses, is4).String()}},
		})
	}
	return all
}

// assignments returns the uses of the policies. A route that no statement rejects is accepted.
func assignments() []*api.PolicyAssignment {
	use := func(policy string, direction api.PolicyDirection) *api.PolicyAssignment {
		return &api.PolicyAssignment{
			Name: globalTable, Direction: direction, Policies: []*api.Policy{{Name: policy}}, DefaultAction: api.RouteAction_ROUTE_ACTION_ACCEPT,
		}
	}
	return []*api.PolicyAssignment{
		use(importPolicy, api.PolicyDirection_POLICY_DIRECTION_IMPORT), use(exportPolicy, api.PolicyDirection_POLICY_DIRECTION_EXPORT),
	}
}

// passive reports whether a peer connects to the node.
func (p Peer) passive() bool { return p.Connection == v1alpha1.ConnectionPassive }
