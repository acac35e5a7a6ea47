// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

const (
	// bridgeName is the bridge that carries tunnels in the userspace datapath, where packets leave the node only through bridges.
	bridgeName = "br-phy"
	// memoryKey is the key in the bridge's external_ids that stores its memory.
	memoryKey = "kiln-uplink"
)

// bridge is the state of br-phy in the database.
type bridge struct {
	row    *vswitch.Bridge // nil if the bridge does not exist
	ports  map[string]vswitch.Port
	memory memory
}

// readBridge reads br-phy from the client's cache.
func readBridge(ctx context.Context, db *client.Client) (bridge, error) {
	var b bridge
	row := &vswitch.Bridge{Name: bridgeName}
	var found []vswitch.Bridge
	if err := db.Where(row).List(ctx, &found); err != nil {
		return b, fmt.Errorf("read bridge %s: %w", bridgeName, err)
	}
	if len(found) == 0 {
		return b, nil
	}
	b.row = &found[0]
	if text := b.row.ExternalIDs[memoryKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &b.memory); err != nil {
			return b, fmt.Errorf("decode external_ids:%s of bridge %s: %w", memoryKey, bridgeName, err)
		}
	}
	var ports []vswitch.Port
	if err := db.List(ctx, &ports); err != nil {
		return b, fmt.Errorf("read ports of bridge %s: %w", bridgeName, err)
	}
	b.ports = map[string]vswitch.Port{}
	for _, p := range ports {
		if slices.Contains(b.row.Ports, p.UUID) {
			b.ports[p.Name] = p
		}
	}
	return b, nil
}

// ensureBridge creates or updates br-phy in one transaction: its memory, and the uplink as its only other port. It is
// idempotent.
func ensureBridge(ctx context.Context, db *client.Client, have bridge, uplink netlink.Link, m memory) error {
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode the memory of bridge %s: %w", bridgeName, err)
	}
	want := &vswitch.Bridge{
		Name:         bridgeName,
		DatapathType: datapathType(v1alpha1.DatapathUserspace),
		FailMode:     new(vswitch.BridgeFailModeStandalone),
		// The uplink's own address: frames for the bridge's IP addresses arrive at the uplink.
		OtherConfig: map[string]string{"hwaddr": uplink.Attrs().HardwareAddr.String()},
		ExternalIDs: map[string]string{memoryKey: string(text)},
	}
	var operations []ovsdb.Operation
	if have.row == nil {
		operations, err = createBridge(ctx, db, want, uplink.Attrs().Name)
	} else {
		operations, err = updateBridge(db, have, want, uplink.Attrs().Name)
	}
	if err != nil {
		return fmt.Errorf("prepare bridge %s: %w", bridgeName, err)
	}
	if len(operations) == 0 {
		return nil
	}
	if _, err := transact(ctx, db, operations); err != nil {
		return fmt.Errorf("write bridge %s: %w", bridgeName, err)
	}
	return nil
}

func createBridge(ctx context.Context, db *client.Client, want *vswitch.Bridge, uplink string) ([]ovsdb.Operation, error) {
	openvswitch, err := root(ctx, db)
	if err != nil {
		return nil, err
	}
	want.UUID, want.Ports = "bridge", []string{"internal_port", "uplink_port"}
	operations, err := insert(db,
		&vswitch.Interface{UUID: "internal_interface", Name: bridgeName, Type: "internal"},
		&vswitch.Port{UUID: "internal_port", Name: bridgeName, Interfaces: []string{"internal_interface"}},
		&vswitch.Interface{UUID: "uplink_interface", Name: uplink},
		&vswitch.Port{UUID: "uplink_port", Name: uplink, Interfaces: []string{"uplink_interface"}},
		want,
	)
	if err != nil {
		return nil, err
	}
	link, err := db.Where(openvswitch).Mutate(openvswitch, model.Mutation{
		Field: &openvswitch.Bridges, Mutator: ovsdb.MutateOperationInsert, Value: []string{want.UUID},
	})
	return append(operations, link...), err
}

func updateBridge(db *client.Client, have bridge, want *vswitch.Bridge, uplink string) ([]ovsdb.Operation, error) {
	var operations []ovsdb.Operation
	changed := *have.row
	changed.DatapathType, changed.FailMode = want.DatapathType, want.FailMode
	changed.OtherConfig, changed.ExternalIDs = merged(changed.OtherConfig, want.OtherConfig), merged(changed.ExternalIDs, want.ExternalIDs)
	if !changed.Equals(have.row) {
		update, err := db.Where(have.row).Update(&changed, &changed.DatapathType, &changed.FailMode, &changed.OtherConfig, &changed.ExternalIDs)
		if err != nil {
			return nil, err
		}
		operations = append(operations, update...)
	}
	add, err := addUplink(db, have, uplink)
	if err != nil {
		return nil, err
	}
	drop, err := dropOtherPorts(db, have, uplink)
	return append(append(operations, add...), drop...), err
}

func addUplink(db *client.Client, have bridge, uplink string) ([]ovsdb.Operation, error) {
	if _, found := have.ports[uplink]; found {
		return nil, nil
	}
	operations, err := insert(db,
		&vswitch.Interface{UUID: "uplink_interface", Name: uplink},
		&vswitch.Port{UUID: "uplink_port", Name: uplink, Interfaces: []string{"uplink_interface"}},
	)
	if err != nil {
		return nil, err
	}
	link, err := db.Where(have.row).Mutate(have.row, model.Mutation{
		Field: &have.row.Ports, Mutator: ovsdb.MutateOperationInsert, Value: []string{"uplink_port"},
	})
	return append(operations, link...), err
}

// insert inserts rows of any tables.
func insert(db *client.Client, rows ...model.Model) ([]ovsdb.Operation, error) {
	var operations []ovsdb.Operation
	for _, row := range rows {
		one, err := db.Create(row)
		if err != nil {
			return nil, err
		}
		operations = append(operations, one...)
	}
	return operations, nil
}

// dropOtherPorts removes a former uplink: a bridge with two uplinks would connect their networks.
func dropOtherPorts(db *client.Client, have bridge, uplink string) ([]ovsdb.Operation, error) {
	var others []string
	for name, port := range have.ports {
		if name != uplink && name != bridgeName {
			others = append(others, port.UUID)
		}
	}
	if len(others) == 0 {
		return nil, nil
	}
	return db.Where(have.row).Mutate(have.row, model.Mutation{
		Field: &have.row.Ports, Mutator: ovsdb.MutateOperationDelete, Value: others,
	})
}

// merged returns base with the entries of over.
func merged(base, over map[string]string) map[string]string {
	all := make(map[string]string, len(base)+len(over))
	for _, m := range []map[string]string{base, over} {
		for key, value := range m {
			all[key] = value
		}
	}
	return all
}
