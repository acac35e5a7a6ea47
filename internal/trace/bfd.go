// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"net/netip"
	"slices"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/translate"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// unusedRoute is a route that OVN does not use, because its BFD session is down.
type unusedRoute struct {
	prefix   netip.Prefix
	bySource bool
	hop      netip.Addr
	// ofUser: of staticRoutes, and not the default route through an external port.
	ofUser bool
}

// usedRoutes returns the rows without routes whose BFD sessions are down, by the status of the VPC, and remembers these routes. The remaining routes refer
// to no sessions.
func (w *walk) usedRoutes(vpc string, rows []desired.Row) []desired.Row {
	var sessions []kubeovnv1.BFDSession
	if of := w.s.vpc(vpc); of != nil {
		sessions = of.Status.BFDSessions
	}
	rows = slices.Clone(rows)
	for i := range rows {
		if route, is := rows[i].Model.(*nb.LogicalRouterStaticRoute); is && !isDown(sessions, route.Nexthop) {
			rows[i].References = nil
		}
	}
	return slices.DeleteFunc(rows, func(row desired.Row) bool {
		if _, is := row.Model.(*nb.BFD); is {
			return true
		}
		route, is := row.Model.(*nb.LogicalRouterStaticRoute)
		if !is || len(row.References) == 0 {
			return false
		}
		prefix, err := netip.ParsePrefix(route.IPPrefix)
		hop, hopErr := netip.ParseAddr(route.Nexthop)
		if err == nil && hopErr == nil && route.RouteTable == "" {
			bySource := route.Policy != nil && *route.Policy == nb.LogicalRouterStaticRoutePolicySrcIP
			w.unused[vpc] = append(w.unused[vpc], unusedRoute{prefix, bySource, hop, translate.ExternalRouteRef(vpc, familyOf(hop)).Key != row.Key})
		}
		return true
	})
}

// isDown reports whether the session with a router is down.
func isDown(sessions []kubeovnv1.BFDSession, router string) bool {
	return slices.ContainsFunc(sessions, func(s kubeovnv1.BFDSession) bool { return s.Peer == router && !s.Up() })
}

// unusedRoute reports a route for a packet that is not used. It reports whether there is one.
func (w *walk) unusedRoute(vpc string, p packet) bool {
	i := slices.IndexFunc(w.unused[vpc], func(r unusedRoute) bool {
		return r.prefix.Contains(p.dst) && !r.bySource || r.prefix.Contains(p.src) && r.bySource
	})
	if i < 0 {
		return false
	}
	r, o, field := w.unused[vpc][i], &Object{Kind: translate.KindVpc, Name: vpc, Rule: "enableBfd"}, "enableBfd"
	if r.ofUser {
		o.Rule, field = "staticRoutes", "bfdId of the route"
	}
	w.drop(o, "let router "+r.hop.String()+" answer by BFD, or unset "+field+", and see condition "+kubeovnv1.ConditionBFDUp+" of Vpc "+vpc,
		"Vpc %s does not use its route to %s by %s, because the BFD session with this router is down", vpc, r.prefix, r.hop)
	return true
}
