// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// monitored adds BFD sessions with the physical routers, and with a next hop of a route of the user.
func monitored(t *testing.T, subnets ...string) outside {
	t.Helper()
	o := newOutside(t, subnets...)
	route := translate.StaticRoute{Prefix: netip.MustParsePrefix("203.0.113.0/24"), NextHop: externalAddress("ext", 0, 253), Monitored: true}
	o.inputs.MonitorGateways, o.inputs.Routes, o.inputs.BFD = true, []translate.StaticRoute{route}, translate.BFD{MinTransmit: 300, MinReceive: 300, Multiplier: 3}
	o.apply(translate.ExternalOwner("blue"), translate.External(o.inputs))
	o.apply(vpc("blue"), translate.Vpc(translate.VpcInputs{Name: "blue", Routes: []translate.StaticRoute{route}}))
	return o
}

// report sets the status of a session as ovn-controller does, and waits for ovn-northd.
func (o outside) report(peer netip.Addr, status string) {
	o.t.Helper()
	at := nbtest.Where("dst_ip", "==", peer.String())
	o.northd.Await("the session with "+peer.String(), func(southbound *nbtest.Server) bool {
		return slices.ContainsFunc(sessions(southbound), func(text string) bool { return strings.HasPrefix(text, peer.String()+" ") })
	})
	o.northd.Southbound.Transact(nbtest.Op{"op": "update", "table": "BFD", "where": at, "row": map[string]any{"status": status}})
	o.northd.Await("the status of "+peer.String(), func(*nbtest.Server) bool { return slices.Contains(sessions(o.server), peer.String()+" "+status) })
	o.northd.Settled()
}

func sessions(s *nbtest.Server) (all []string) {
	for _, row := range s.Rows("BFD") {
		all = append(all, fmt.Sprint(row["dst_ip"], " ", row["status"]))
	}
	slices.Sort(all)
	return all
}

// routed returns the next hops in external subnets of the routes with a prefix in the main table.
func (o outside) routed(prefix string) (hops []string) {
	for _, flow := range o.flows("lr_in_ip_routing") {
		match, actions, _ := strings.Cut(flow, " => ")
		if !strings.Contains(match, "reg7 == 0 && ") || !strings.HasSuffix(match, ".dst == "+prefix) {
			continue
		}
		_, hop, _ := strings.Cut(actions, "reg0 = ")
		hop, _, _ = strings.Cut(hop, ";")
		if slices.ContainsFunc(slices.Collect(maps.Values(externalNetworks)), func(n [2]string) bool { return strings.HasPrefix(hop, n[0]) || strings.HasPrefix(hop, n[1]) }) {
			hops = append(hops, hop)
		}
	}
	return hops
}

func (o outside) expectRouted(prefix string, want ...string) {
	o.t.Helper()
	if got := o.routed(prefix); !slices.Equal(got, want) {
		o.t.Errorf("%s leads to %v, want %v", prefix, got, want)
	}
}

// A route is used while its BFD session is up, in both families, and independent of other sessions.
func TestNorthdWithdrawsRoutesOfSessionsThatAreDown(t *testing.T) {
	o := monitored(t, "ext")
	v4, v6, other := externalAddress("ext", 0, 254), externalAddress("ext", 1, 254), externalAddress("ext", 0, 253)
	o.northd.Await("all sessions", func(*nbtest.Server) bool {
		return slices.Equal(sessions(o.server), []string{other.String() + " down", v4.String() + " down", v6.String() + " down"})
	})
	o.northd.Settled()
	o.expectRouted("0.0.0.0/0")
	o.expectRouted("::/0")
	o.expectRouted("203.0.113.0/24")
	if !slices.ContainsFunc(o.flows("lr_in_arp_request"), func(flow string) bool { return strings.Contains(flow, "33:33:ff:00:02:54") }) {
		t.Error("no neighbour solicitation for the IPv6 router, with which a session could begin")
	}
	o.report(v4, "up")
	o.expectRouted("0.0.0.0/0", v4.String())
	o.expectRouted("::/0")
	o.expectRouted("203.0.113.0/24")
	o.report(v6, "up")
	o.report(other, "up")
	o.expectRouted("0.0.0.0/0", v4.String())
	o.expectRouted("::/0", v6.String())
	o.expectRouted("203.0.113.0/24", other.String())
	o.report(v4, "down")
	o.expectRouted("0.0.0.0/0")
	o.expectRouted("203.0.113.0/24", other.String())

	o.inputs.MonitorGateways, o.inputs.Routes = false, nil
	o.apply(translate.ExternalOwner("blue"), translate.External(o.inputs))
	o.northd.Await("the default route without a session", func(*nbtest.Server) bool { return len(o.routed("0.0.0.0/0")) == 1 })
	if left := sessions(o.server); len(left) > 0 {
		t.Errorf("sessions are left: %v", left)
	}
}

// The leader of the southbound database writes the chassis of each session (supervisor/ovsdb): ovn-northd writes none for distributed ports, and keeps it.
func TestNorthdKeepsTheChassisOfASession(t *testing.T) {
	o := monitored(t, "ext")
	v4 := externalAddress("ext", 0, 254)
	chassis := func() (all []string) {
		for _, row := range o.northd.Southbound.Rows("BFD") {
			all = append(all, row["chassis_name"].(string))
		}
		return slices.Compact(all)
	}
	o.report(v4, "down")
	if got := chassis(); !slices.Equal(got, []string{""}) {
		t.Errorf("ovn-northd writes the chassis of sessions itself: %q. Then keepSessions of supervisor/ovsdb is not needed", got)
	}
	o.northd.Southbound.Transact(nbtest.Op{"op": "update", "table": "BFD", "where": []any{}, "row": map[string]any{"chassis_name": "n1"}})
	o.report(v4, "up")
	o.northd.Recompute()
	o.northd.Settled()
	if got := chassis(); !slices.Equal(got, []string{"n1"}) {
		t.Errorf("the sessions have the chassis %q, want n1", got)
	}
}

// With two external subnets, the rules of the second one need a route while the session of the first one is down: OVN looks at policies only for packets with a route.
func TestNorthdKeepsTheDefaultRouteOfSeveralExternalSubnets(t *testing.T) {
	o := monitored(t, "ext", "ext2")
	o.report(externalAddress("ext2", 0, 254), "up")
	o.report(externalAddress("ext", 0, 254), "down")
	o.expectRouted("0.0.0.0/0", externalAddress("ext", 0, 254).String())
	// All sessions run, also if no route depends on them.
	o.northd.Await("all sessions", func(*nbtest.Server) bool {
		all := sessions(o.server)
		return len(all) == 5 && !slices.ContainsFunc(all, func(s string) bool { return strings.HasSuffix(s, "admin_down") })
	})
}
