// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"net/netip"
	"strings"
	"testing"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/northbound/translate"
)

// TestWhatMovingAGatewayCostsNorthd pins the cost of a failover: one full recompute, like any change of a router policy in OVN
// 25.03.
func TestWhatMovingAGatewayCostsNorthd(t *testing.T) {
	server := nbtest.Start(t)
	northd := server.Northd()
	e := lead(t, server.Endpoint())
	applyNetwork(e)
	gateway := func(hop string) {
		t.Helper()
		e.apply(translate.GatewayOwner("s1"), translate.Gateway(translate.GatewayInputs{
			Vpc: kubeovnv1.DefaultVpc, CIDRs: []netip.Prefix{netip.MustParsePrefix("10.16.0.0/16")}, NextHops: []netip.Addr{netip.MustParseAddr(hop)},
		}))
		northd.Await("the flow to "+hop, func(sb *nbtest.Server) bool {
			for _, row := range sb.Rows("Logical_Flow") {
				match, _ := row["match"].(string)
				if strings.Contains(match, "ip4.src == 10.16.0.0/16") {
					actions, _ := row["actions"].(string)
					return strings.Contains(actions, hop)
				}
			}
			return false
		})
	}
	gateway("100.64.0.2")
	northd.Settled()
	before := map[string]int{}
	for _, node := range costly {
		before[node] = northd.Recomputes(node)
	}
	gateway("100.64.0.3")
	northd.Settled()
	for _, node := range costly {
		if n := northd.Recomputes(node) - before[node]; n > 1 {
			t.Errorf("northd computed its %s in full %d times, want at most once", node, n)
		}
	}
}
