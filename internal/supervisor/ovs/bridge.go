// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
	"github.com/kiln-net/kiln/internal/providerbridge"
	"github.com/kiln-net/kiln/internal/uplink"
)

const (
	bridgeName = providerbridge.Tunnels
	// memoryKey is the key in br-phy's external_ids that stores its memory.
	memoryKey = "kiln-uplink"
)

// memory is uplink.Memory as the database has it.
type memory struct {
	Uplink    string         `json:"uplink"`
	Addresses []netip.Prefix `json:"addresses"`
	Routes    []uplink.Route `json:"routes,omitempty"`
}

func memoryOf(m uplink.Memory) memory {
	return memory{Uplink: m.Uplink, Addresses: uplink.Prefixes(m.Addresses), Routes: m.Routes}
}

func (m memory) plain() uplink.Memory {
	return uplink.Memory{Uplink: m.Uplink, Addresses: uplink.Plain(m.Addresses), Routes: m.Routes}
}

// bridge is the state of a bridge in the database.
type bridge struct {
	row   *vswitch.Bridge // nil if the bridge does not exist
	ports map[string]vswitch.Port
	// memory of br-phy.
	memory memory
}

// readBridge reads a bridge from the client's cache.
func readBridge(ctx context.Context, db *client.Client, name string) (bridge, error) {
	var b bridge
	row := &vswitch.Bridge{Name: name}
	var found []vswitch.Bridge
	if err := db.Where(row).List(ctx, &found); err != nil {
		return b, fmt.Errorf("read bridge %s: %w", name, err)
	}
	if len(found) == 0 {
		return b, nil
	}
	b.row = &found[0]
	if text := b.row.ExternalIDs[memoryKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &b.memory); err != nil {
			return b, fmt.Errorf("decode external_ids:%s of bridge %s: %w", memoryKey, name, err)
		}
	}
	var ports []vswitch.Port
	if err := db.List(ctx, &ports); err != nil {
		return b, fmt.Errorf("read ports of bridge %s: %w", name, err)
	}
	b.ports = map[string]vswitch.Port{}
	for _, p := range ports {
		if slices.Contains(b.row.Ports, p.UUID) {
			b.ports[p.Name] = p
		}
	}
	return b, nil
}

// bridgeSpec is a bridge with an uplink.
type bridgeSpec struct {
	name        string
	datapath    v1alpha1.Datapath
	hwaddr      string
	externalIDs map[string]string
	// uplink is the name of the port that is added; empty for none. portIDs are its external_ids.
	uplink  string
	portIDs map[string]string
	// peer is the other end if the uplink is a patch port.
	peer string
	// former reports whether a port is a former uplink: a bridge with two uplinks would connect their networks.
	former func(vswitch.Port) bool
}

// ensure creates or updates the bridge in one transaction, with the uplink as its only port of that kind. It is idempotent.
func (s bridgeSpec) ensure(ctx context.Context, db *client.Client, have bridge) error {
	want := &vswitch.Bridge{
		Name:         s.name,
		DatapathType: datapathType(s.datapath),
		FailMode:     new(vswitch.BridgeFailModeStandalone),
		// The uplink's own address: frames for the bridge's IP addresses arrive at the uplink.
		OtherConfig: map[string]string{"hwaddr": s.hwaddr},
		ExternalIDs: s.externalIDs,
	}
	operations, err := s.change(ctx, db, have, want)
	if err != nil {
		return fmt.Errorf("prepare bridge %s: %w", s.name, err)
	}
	if len(operations) == 0 {
		return nil
	}
	if _, err := transact(ctx, db, operations); err != nil {
		return fmt.Errorf("write bridge %s: %w", s.name, err)
	}
	return nil
}

func (s bridgeSpec) change(ctx context.Context, db *client.Client, have bridge, want *vswitch.Bridge) ([]ovsdb.Operation, error) {
	if have.row == nil {
		return s.create(ctx, db, want)
	}
	return s.update(db, have, want)
}

// port returns the rows of the uplink's port.
func (s bridgeSpec) port() []model.Model {
	link := &vswitch.Interface{UUID: "uplink_interface", Name: s.uplink}
	if s.peer != "" {
		link.Type, link.Options = "patch", map[string]string{"peer": s.peer}
	}
	return []model.Model{
		link,
		&vswitch.Port{UUID: "uplink_port", Name: s.uplink, Interfaces: []string{"uplink_interface"}, ExternalIDs: s.portIDs},
	}
}

func (s bridgeSpec) create(ctx context.Context, db *client.Client, want *vswitch.Bridge) ([]ovsdb.Operation, error) {
	openvswitch, err := root(ctx, db)
	if err != nil {
		return nil, err
	}
	rows := []model.Model{
		&vswitch.Interface{UUID: "internal_interface", Name: s.name, Type: "internal"},
		&vswitch.Port{UUID: "internal_port", Name: s.name, Interfaces: []string{"internal_interface"}},
	}
	want.UUID, want.Ports = "bridge", []string{"internal_port"}
	if s.uplink != "" {
		rows = append(rows, s.port()...)
		want.Ports = append(want.Ports, "uplink_port")
	}
	operations, err := insert(db, append(rows, want)...)
	if err != nil {
		return nil, err
	}
	link, err := db.Where(openvswitch).Mutate(openvswitch, model.Mutation{
		Field: &openvswitch.Bridges, Mutator: ovsdb.MutateOperationInsert, Value: []string{want.UUID},
	})
	return append(operations, link...), err
}

func (s bridgeSpec) update(db *client.Client, have bridge, want *vswitch.Bridge) ([]ovsdb.Operation, error) {
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
	add, err := s.addUplink(db, have)
	if err != nil {
		return nil, err
	}
	drop, err := s.dropFormer(db, have)
	return append(append(operations, add...), drop...), err
}

func (s bridgeSpec) addUplink(db *client.Client, have bridge) ([]ovsdb.Operation, error) {
	if _, found := have.ports[s.uplink]; found || s.uplink == "" {
		return nil, nil
	}
	operations, err := insert(db, s.port()...)
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

// dropFormer removes former uplinks.
func (s bridgeSpec) dropFormer(db *client.Client, have bridge) ([]ovsdb.Operation, error) {
	var others []string
	for name, port := range have.ports {
		if name != s.uplink && name != s.name && s.former(port) {
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
