// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
)

// settings are the values that ovn-controller reads from the Open_vSwitch table (ovn-controller(8), Configuration).
type settings struct {
	node          string
	runDir        string
	datapath      v1alpha1.Datapath
	tunnelTypes   []v1alpha1.TunnelType
	encapsulation string   // the address of the local tunnel endpoint
	remotes       []string // of the southbound database; empty while they are unknown
}

// Intervals and limits of the node's daemons (ovn-controller(8), ovs-vswitchd.conf.db(5)). docs/decisions/2026-11-25-probe-intervals.md has the
// reasons.
const (
	// remoteProbe is the time in milliseconds without a message from the southbound database after which ovn-controller sends a
	// probe. It closes the connection after the same time without an answer, and reads the whole database again: the initial reads of
	// many chassis keep a server busy for longer than a few seconds. Members that the operator finds silent are left out of ovn-remote
	// much earlier, see follow.
	remoteProbe = "60000"
	// flowCache is the largest size of ovn-controller's cache of logical flows, in KiB. The default is unlimited.
	flowCache = "1048576"
	// bundleTimeout is the time in seconds after which ovs-vswitchd drops an idle bundle of flows. The default of 10 s drops bundles of
	// a busy ovn-controller, which then sends all its flows again.
	bundleTimeout = "180"
	// statisticsInterval is the time in milliseconds between two updates of the statistics of all interfaces in the database. The
	// default of 5 s costs ovs-vswitchd and ovsdb-server more than the few readers of the statistics need.
	statisticsInterval = "60000"
)

// otherConfig are keys of other_config that are added if they are missing. Values of an administrator stay.
var otherConfig = map[string]string{"bundle-idle-timeout": bundleTimeout, "stats-update-interval": statisticsInterval}

// externalIDs returns Kiln's keys in the Open_vSwitch row. Without remotes, the last known ones stay in the row, so that a node
// starts without the API server.
func (s settings) externalIDs() map[string]string {
	types := make([]string, 0, len(s.tunnelTypes))
	for _, t := range s.tunnelTypes {
		types = append(types, string(t))
	}
	ids := map[string]string{
		"system-id":                   s.node,
		"hostname":                    s.node,
		"rundir":                      s.runDir,
		"ovn-bridge":                  "br-int",
		"ovn-bridge-datapath-type":    database.DatapathType(s.datapath),
		"ovn-encap-type":              strings.Join(types, ","),
		"ovn-encap-ip":                s.encapsulation,
		"ovn-monitor-all":             "true",
		"ovn-remote-probe-interval":   remoteProbe,
		"ovn-memlimit-lflow-cache-kb": flowCache,
	}
	if len(s.remotes) > 0 {
		ids["ovn-remote"] = strings.Join(s.remotes, ",")
	}
	return ids
}

// missing returns the entries of want whose keys have lacks.
func missing(have, want map[string]string) map[string]string {
	added := maps.Clone(want)
	maps.DeleteFunc(added, func(key, _ string) bool { _, found := have[key]; return found })
	return added
}

// configure writes the settings into the row if they differ. It does not change other keys.
func configure(ctx context.Context, db *client.Client, s settings) error {
	row, err := database.Root(ctx, db)
	if err != nil {
		return err
	}
	var mutations []model.Mutation
	if changed := database.Difference(row.ExternalIDs, s.externalIDs()); len(changed) > 0 {
		mutations = append(mutations,
			model.Mutation{Field: &row.ExternalIDs, Mutator: ovsdb.MutateOperationDelete, Value: slices.Collect(maps.Keys(changed))},
			model.Mutation{Field: &row.ExternalIDs, Mutator: ovsdb.MutateOperationInsert, Value: changed})
	}
	if added := missing(row.OtherConfig, otherConfig); len(added) > 0 {
		mutations = append(mutations, model.Mutation{Field: &row.OtherConfig, Mutator: ovsdb.MutateOperationInsert, Value: added})
	}
	if len(mutations) == 0 {
		return nil
	}
	operations, err := db.Where(row).Mutate(row, mutations...)
	if err != nil {
		return fmt.Errorf("configure Open_vSwitch: %w", err)
	}
	if _, err := database.Transact(ctx, db, operations); err != nil {
		return fmt.Errorf("configure Open_vSwitch: %w", err)
	}
	return nil
}
