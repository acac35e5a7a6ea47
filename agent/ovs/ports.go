// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

func isNotFound(err error) bool { return errors.Is(err, client.ErrNotFound) }

// Attach makes a port of the bridge say what a says, in one transaction, and removes every other port that claims to be the same
// logical port. It is idempotent. It does not wait for anyone to act on the port: see WaitInstalled.
func (b *Bridge) Attach(ctx context.Context, a Attachment) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	row, err := b.iface(ctx, a.Name)
	if err != nil {
		return err
	}
	if row != nil {
		holder, ours := attachmentOf(row)
		if !ours || holder.ContainerID != a.ContainerID || holder.IfName != a.IfName {
			return fmt.Errorf("port %s of Open vSwitch belongs to another: %v", a.Name, row.ExternalIDs)
		}
	}
	operations, err := b.evict(ctx, a.LogicalPort, a.Name)
	if err != nil {
		return err
	}
	switch {
	case row == nil:
		more, err := b.insert(ctx, &vswitch.Interface{Name: a.Name, ExternalIDs: a.externalIDs()})
		if err != nil {
			return err
		}
		operations = append(operations, more...)
	case !a.is(row):
		want := &vswitch.Interface{ExternalIDs: merge(row.ExternalIDs, a.externalIDs())}
		more, err := b.client.Where(row).Update(want, &want.ExternalIDs)
		if err != nil {
			return fmt.Errorf("update interface %s: %w", a.Name, err)
		}
		operations = append(operations, more...)
	}
	if err := b.transact(ctx, operations); err != nil {
		return fmt.Errorf("attach port %s: %w", a.Name, err)
	}
	return nil
}

// Detach removes ports in one transaction. Names that are not there are no error.
func (b *Bridge) Detach(ctx context.Context, names ...string) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	operations, err := b.remove(ctx, names)
	if err != nil {
		return err
	}
	if err := b.transact(ctx, operations); err != nil {
		return fmt.Errorf("detach ports %v: %w", names, err)
	}
	return nil
}

// Find returns the attachment in the port of that name; false when there is none, or the port is no pod's.
func (b *Bridge) Find(ctx context.Context, name string) (Attachment, bool, error) {
	row, err := b.iface(ctx, name)
	if err != nil || row == nil {
		return Attachment{}, false, err
	}
	a, ok := attachmentOf(row)
	return a, ok, nil
}

// Attachments returns every pod's port.
func (b *Bridge) Attachments(ctx context.Context) ([]Attachment, error) {
	if !b.client.Connected() {
		return nil, ErrDisconnected
	}
	var rows []vswitch.Interface
	if err := b.list(ctx, b.client, &rows); err != nil {
		return nil, fmt.Errorf("read interfaces: %w", err)
	}
	out := make([]Attachment, 0, len(rows))
	for i := range rows {
		if a, ok := attachmentOf(&rows[i]); ok {
			out = append(out, a)
		}
	}
	return out, nil
}

// evict gives the operations that remove every port that claims to be logicalPort, save the one called except.
func (b *Bridge) evict(ctx context.Context, logicalPort, except string) ([]ovsdb.Operation, error) {
	var rows []vswitch.Interface
	index := &vswitch.Interface{ExternalIDs: map[string]string{keyLogicalPort: logicalPort}}
	if err := b.list(ctx, b.client.Where(index), &rows); err != nil && !isNotFound(err) {
		return nil, fmt.Errorf("look for ports of %s: %w", logicalPort, err)
	}
	var names []string
	for _, row := range rows {
		if row.Name != except {
			names = append(names, row.Name)
		}
	}
	return b.remove(ctx, names)
}

// remove gives the operations that take ports out of the bridge. The rows go with the last reference to them.
func (b *Bridge) remove(ctx context.Context, names []string) ([]ovsdb.Operation, error) {
	var ports []string
	for _, name := range names {
		port := &vswitch.Port{Name: name}
		switch err := b.get(ctx, port); {
		case isNotFound(err):
			continue
		case err != nil:
			return nil, fmt.Errorf("read port %s: %w", name, err)
		}
		ports = append(ports, port.UUID)
	}
	if len(ports) == 0 {
		return nil, nil
	}
	return b.mutatePorts(ctx, ovsdb.MutateOperationDelete, ports)
}

// insert gives the operations that add an interface with a port of its own.
func (b *Bridge) insert(ctx context.Context, iface *vswitch.Interface) ([]ovsdb.Operation, error) {
	iface.UUID = "interface"
	port := &vswitch.Port{UUID: "port", Name: iface.Name, Interfaces: []string{iface.UUID}}
	var operations []ovsdb.Operation
	for _, row := range []model.Model{iface, port} {
		created, err := b.client.Create(row)
		if err != nil {
			return nil, fmt.Errorf("create port %s: %w", iface.Name, err)
		}
		operations = append(operations, created...)
	}
	added, err := b.mutatePorts(ctx, ovsdb.MutateOperationInsert, []string{port.UUID})
	if err != nil {
		return nil, err
	}
	return append(operations, added...), nil
}

func (b *Bridge) mutatePorts(ctx context.Context, mutator ovsdb.Mutator, ports []string) ([]ovsdb.Operation, error) {
	bridge, err := b.row(ctx)
	if err != nil {
		return nil, err
	}
	operations, err := b.client.Where(bridge).Mutate(bridge, model.Mutation{Field: &bridge.Ports, Mutator: mutator, Value: ports})
	if err != nil {
		return nil, fmt.Errorf("change ports of %s: %w", IntegrationBridge, err)
	}
	return operations, nil
}

// Internal is a port that ovs-vswitchd itself makes a device for.
type Internal struct {
	Name        string
	LogicalPort string
	MAC         string
	MTU         int
}

// EnsureInternal makes an internal port of the bridge be as given, in one transaction. It is idempotent.
func (b *Bridge) EnsureInternal(ctx context.Context, p Internal) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	row, err := b.iface(ctx, p.Name)
	if err != nil {
		return err
	}
	operations, err := b.evict(ctx, p.LogicalPort, p.Name)
	if err != nil {
		return err
	}
	ids := map[string]string{keyLogicalPort: p.LogicalPort, keyVendor: vendor}
	want := &vswitch.Interface{Name: p.Name, Type: "internal", MAC: &p.MAC, MTURequest: &p.MTU, ExternalIDs: ids}
	switch {
	case row == nil:
		more, err := b.insert(ctx, want)
		if err != nil {
			return err
		}
		operations = append(operations, more...)
	case row.Type != want.Type || !equal(row.MAC, want.MAC) || !equal(row.MTURequest, want.MTURequest) || !holds(row.ExternalIDs, ids):
		want.ExternalIDs = merge(row.ExternalIDs, ids)
		more, err := b.client.Where(row).Update(want, &want.Type, &want.MAC, &want.MTURequest, &want.ExternalIDs)
		if err != nil {
			return fmt.Errorf("update interface %s: %w", p.Name, err)
		}
		operations = append(operations, more...)
	}
	if err := b.transact(ctx, operations); err != nil {
		return fmt.Errorf("make port %s: %w", p.Name, err)
	}
	return nil
}

// merge keeps the keys of others, but not that a port was installed as another logical port.
func merge(have, want map[string]string) map[string]string {
	out := maps.Clone(have)
	if have[keyLogicalPort] != want[keyLogicalPort] || have[keyVersion] != want[keyVersion] {
		delete(out, keyInstalled)
	}
	maps.Copy(out, want)
	return out
}

func equal[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// Installed reports whether ovn-controller has installed the flows of a port, and what ovs-vswitchd says against it.
func (b *Bridge) Installed(ctx context.Context, name string) (bool, error) {
	row, err := b.iface(ctx, name)
	switch {
	case err != nil:
		return false, err
	case row == nil:
		return false, nil
	case row.Error != nil:
		return false, &PortError{Port: name, Reason: *row.Error}
	}
	return row.ExternalIDs[keyInstalled] == "true", nil
}

// WaitInstalled waits until ovn-controller has installed the flows of a port, woken by the database's monitor. It gives up when
// ovs-vswitchd refuses the interface, and when ctx ends.
func (b *Bridge) WaitInstalled(ctx context.Context, name string) error {
	changed, stop := b.changes.watch(name)
	defer stop()
	for {
		done, err := b.Installed(ctx, name)
		if done || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
