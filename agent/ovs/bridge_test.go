// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"slices"
	"testing"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/testing/must"
)

// Every pod adds or removes a port, and subscribers reconcile the whole node when the bridge changes.
func TestPortsAreNoChangeOfTheirBridge(t *testing.T) {
	b := newBridge(t)
	changed := make(chan string, 100)
	b.Subscribe(func(name string) { changed <- name })
	until := func(last string) (names []string) {
		for name := range changed {
			names = append(names, name)
			if name == last {
				return names
			}
		}
		return nil
	}
	must.Succeed(t, b.attaching("first", "lsp")(t.Context()))
	until("first") // existing rows are reported too, before this one
	must.Succeed(t, b.attaching("p0", "lsp0")(t.Context()))
	must.Succeed(t, b.detaching("p0")(t.Context()))
	must.Succeed(t, b.attaching("p1", "lsp1")(t.Context()))
	if names := until("p1"); slices.Contains(names, IntegrationBridge) || !slices.Contains(names, "p0") {
		t.Errorf("changed ports are reported as %v", names)
	}
	bridge := &vswitch.Bridge{Name: IntegrationBridge, DatapathType: "netdev"}
	operations, err := b.client.Where(bridge).Update(bridge, &bridge.DatapathType)
	must.Succeed(t, err)
	results, err := b.client.Transact(t.Context(), operations...)
	must.Succeed(t, err)
	_, err = ovsdb.CheckOperationResults(results, operations)
	must.Succeed(t, err)
	until(IntegrationBridge)
}
