// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package database

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

// Integration is ovn-controller's bridge.
const Integration = "br-int"

// Bridge is the state of a bridge in the database.
type Bridge struct {
	Row   *vswitch.Bridge // nil if the bridge does not exist
	Ports map[string]vswitch.Port
}

// Read reads a bridge from the client's cache.
func Read(ctx context.Context, db *client.Client, name string) (Bridge, error) {
	var b Bridge
	row := &vswitch.Bridge{Name: name}
	var found []vswitch.Bridge
	if err := db.Where(row).List(ctx, &found); err != nil {
		return b, fmt.Errorf("read bridge %s: %w", name, err)
	}
	if len(found) == 0 {
		return b, nil
	}
	b.Row = &found[0]
	var ports []vswitch.Port
	if err := db.List(ctx, &ports); err != nil {
		return b, fmt.Errorf("read ports of bridge %s: %w", name, err)
	}
	b.Ports = map[string]vswitch.Port{}
	for _, p := range ports {
		if slices.Contains(b.Row.Ports, p.UUID) {
			b.Ports[p.Name] = p
		}
	}
	return b, nil
}

// Spec is a bridge with an uplink.
type Spec struct {
	Name        string
	Datapath    v1alpha1.Datapath
	MAC         string
	ExternalIDs map[string]string
	// Uplink is the name of the port that is added; empty for none. PortIDs are its external_ids.
	Uplink  string
	PortIDs map[string]string
	// Peer is the other end if the uplink is a patch port.
	Peer string
	// Former reports whether a port is a former uplink: a bridge with two uplinks would connect their networks.
	Former func(vswitch.Port) bool
}

// Ensure creates or updates the bridge in one transaction, with the uplink as its only port of that kind. It is idempotent.
func (s Spec) Ensure(ctx context.Context, db *client.Client, have Bridge) error {
	want := &vswitch.Bridge{
		Name:         s.Name,
		DatapathType: DatapathType(s.Datapath),
		FailMode:     new(vswitch.BridgeFailModeStandalone),
		// The uplink's own address: frames for the bridge's IP addresses arrive at the uplink.
		OtherConfig: map[string]string{"hwaddr": s.MAC},
		ExternalIDs: s.ExternalIDs,
	}
	operations, err := s.change(ctx, db, have, want)
	if err != nil {
		return fmt.Errorf("prepare bridge %s: %w", s.Name, err)
	}
	if len(operations) == 0 {
		return nil
	}
	if _, err := Transact(ctx, db, operations); err != nil {
		return fmt.Errorf("write bridge %s: %w", s.Name, err)
	}
	return nil
}

func (s Spec) change(ctx context.Context, db *client.Client, have Bridge, want *vswitch.Bridge) ([]ovsdb.Operation, error) {
	if have.Row == nil {
		return s.create(ctx, db, want)
	}
	return s.update(db, have, want)
}

// port returns the rows of the uplink's port.
func (s Spec) port() []model.Model {
	link := &vswitch.Interface{UUID: "uplink_interface", Name: s.Uplink}
	if s.Peer != "" {
		link.Type, link.Options = "patch", map[string]string{"peer": s.Peer}
	}
	return []model.Model{
		link,
		&vswitch.Port{UUID: "uplink_port", Name: s.Uplink, Interfaces: []string{"uplink_interface"}, ExternalIDs: s.PortIDs},
	}
}

func (s Spec) create(ctx context.Context, db *client.Client, want *vswitch.Bridge) ([]ovsdb.Operation, error) {
	openvswitch, err := Root(ctx, db)
	if err != nil {
		return nil, err
	}
	rows := []model.Model{
		&vswitch.Interface{UUID: "internal_interface", Name: s.Name, Type: "internal"},
		&vswitch.Port{UUID: "internal_port", Name: s.Name, Interfaces: []string{"internal_interface"}},
	}
	want.UUID, want.Ports = "bridge", []string{"internal_port"}
	if s.Uplink != "" {
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

func (s Spec) update(db *client.Client, have Bridge, want *vswitch.Bridge) ([]ovsdb.Operation, error) {
	var operations []ovsdb.Operation
	changed := *have.Row
	changed.DatapathType, changed.FailMode = want.DatapathType, want.FailMode
	changed.OtherConfig, changed.ExternalIDs = merged(changed.OtherConfig, want.OtherConfig), merged(changed.ExternalIDs, want.ExternalIDs)
	if !changed.Equals(have.Row) {
		update, err := db.Where(have.Row).Update(&changed, &changed.DatapathType, &changed.FailMode, &changed.OtherConfig, &changed.ExternalIDs)
		if err != nil {
			return nil, err
		}
		operations = append(operations, update...)
	}
	add, err := s.AddUplink(db, have)
	if err != nil {
		return nil, err
	}
	drop, err := s.dropFormer(db, have)
	return append(append(operations, add...), drop...), err
}

// AddUplink returns the operations that add the uplink to a bridge; none if it is there.
func (s Spec) AddUplink(db *client.Client, have Bridge) ([]ovsdb.Operation, error) {
	if _, found := have.Ports[s.Uplink]; found || s.Uplink == "" {
		return nil, nil
	}
	operations, err := insert(db, s.port()...)
	if err != nil {
		return nil, err
	}
	link, err := db.Where(have.Row).Mutate(have.Row, model.Mutation{
		Field: &have.Row.Ports, Mutator: ovsdb.MutateOperationInsert, Value: []string{"uplink_port"},
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
func (s Spec) dropFormer(db *client.Client, have Bridge) ([]ovsdb.Operation, error) {
	var others []string
	for name, port := range have.Ports {
		if name != s.Uplink && name != s.Name && s.Former(port) {
			others = append(others, port.UUID)
		}
	}
	if len(others) == 0 {
		return nil, nil
	}
	return db.Where(have.Row).Mutate(have.Row, model.Mutation{
		Field: &have.Row.Ports, Mutator: ovsdb.MutateOperationDelete, Value: others,
	})
}

// Delete deletes a bridge with its ports.
func Delete(ctx context.Context, db *client.Client, name string) error {
	have, err := Read(ctx, db, name)
	if err != nil || have.Row == nil {
		return err
	}
	row, err := Root(ctx, db)
	if err != nil {
		return err
	}
	operations, err := db.Where(row).Mutate(row, model.Mutation{Field: &row.Bridges, Mutator: ovsdb.MutateOperationDelete, Value: []string{have.Row.UUID}})
	if err == nil {
		_, err = Transact(ctx, db, operations)
	}
	if err != nil {
		return fmt.Errorf("delete bridge %s: %w", name, err)
	}
	return nil
}

// Await returns once ovs-vswitchd has made or attached an interface (ovs-vswitchd.conf.db(5), Interface, ofport).
func Await(ctx context.Context, db *client.Client, name string, within time.Duration) error {
	row := &vswitch.Interface{Name: name}
	milliseconds := int(within / time.Millisecond)
	wait, err := db.Where(row).Wait(ovsdb.WaitConditionNotEqual, &milliseconds, row, &row.Ofport)
	if err == nil {
		_, err = Transact(ctx, db, wait)
	}
	if err != nil {
		return fmt.Errorf("wait for ovs-vswitchd to attach interface %s: %w", name, err)
	}
	var found []vswitch.Interface
	if err := db.Where(&vswitch.Interface{Name: name}).List(ctx, &found); err != nil {
		return fmt.Errorf("read interface %s: %w", name, err)
	}
	for _, f := range found {
		if f.Error != nil && *f.Error != "" {
			return fmt.Errorf("ovs-vswitchd cannot attach interface %s: %s", name, *f.Error)
		}
	}
	return nil
}

// Own returns the bridges of provider networks in the database, with their networks.
func Own(ctx context.Context, db *client.Client) (map[string]string, error) {
	var rows []vswitch.Bridge
	if err := db.List(ctx, &rows); err != nil {
		return nil, fmt.Errorf("read bridges: %w", err)
	}
	own := map[string]string{}
	for _, row := range rows {
		if provider := row.ExternalIDs[providerbridge.PortKey]; provider != "" && row.Name == providerbridge.Bridge(provider) {
			own[row.Name] = provider
		}
	}
	return own, nil
}

// Detach removes an interface from a bridge; with an empty name, all uplinks of the bridge.
func Detach(ctx context.Context, db *client.Client, name, link string) error {
	have, err := Read(ctx, db, name)
	if err != nil || have.Row == nil {
		return err
	}
	var ports []string
	for port, row := range have.Ports {
		if row.ExternalIDs[providerbridge.PortKey] != "" && (port == link || link == "") {
			ports = append(ports, row.UUID)
		}
	}
	if len(ports) == 0 {
		return nil
	}
	operations, err := db.Where(have.Row).Mutate(have.Row, model.Mutation{Field: &have.Row.Ports, Mutator: ovsdb.MutateOperationDelete, Value: ports})
	if err == nil {
		_, err = Transact(ctx, db, operations)
	}
	if err != nil {
		return fmt.Errorf("remove the uplink of bridge %s: %w", name, err)
	}
	return nil
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
