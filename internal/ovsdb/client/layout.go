// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"slices"

	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// Children are the set columns of the northbound database that keep rows of other tables alive: strong references to non-root
// tables (ovn-nb(5)). They are not monitored: a child row exists only while such a column holds it, so the row itself is
// sufficient. Therefore the cost of a change of one port does not depend on the number of ports of its switch, which may be
// 20,000.
var Children = map[string][]string{
	nb.LogicalSwitchTable:     {"ports", "acls", "qos_rules", "forwarding_groups"},
	nb.LogicalRouterTable:     {"ports", "static_routes", "policies", "nat"},
	nb.LogicalRouterPortTable: {"gateway_chassis"},
	nb.PortGroupTable:         {"acls"},
	nb.LoadBalancerTable:      {"health_check"},
	nb.HAChassisGroupTable:    {"ha_chassis"},
}

// Shared are the set columns of the northbound database to which several owners contribute. They can grow to tens of thousands
// of values. The replica stores them as Sets, not in the models, and applies a change of one value in constant time.
var Shared = map[string][]string{
	nb.PortGroupTable:         {"ports"},
	nb.AddressSetTable:        {"addresses"},
	nb.LoadBalancerGroupTable: {"load_balancer"},
	nb.LogicalSwitchTable:     {"load_balancer", "dns_records"},
	nb.LogicalSwitchPortTable: {"mirror_rules"},
	nb.LogicalRouterTable:     {"load_balancer"},
}

// northboundColumns returns the monitored columns of a table.
func northboundColumns(table string) []string {
	schema := northboundSchema()
	return columnsExcept(schema.Table(table), Children[table]...)
}

func isShared(table, column string) bool { return slices.Contains(Shared[table], column) }
