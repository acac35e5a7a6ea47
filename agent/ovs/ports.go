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

// Attach creates or updates the port of a in one transaction, and removes every other port with the same logical port. It is idempotent.
// It does not wait until ovs-vswitchd and ovn-controller have processed the port: see WaitPort and WaitInstalled.
func (b *Bridge) Attach(ctx context.Context, a Attachment) error {
	err := b.commit(ctx, attachKeys(a), func(ctx context.Context, prefix string) (change, error) {
		return b.attach(ctx, a, prefix)
	})
	if err != nil {
		return fmt.Errorf("attach port %s: %w", a.Name, err)
	}
	return nil
}

// logicalPortKey returns the key that serializes requests for one logical port: each removes the ports of the previous one.
func logicalPortKey(name string) string { return "logical port " + name }

func (b *Bridge) attach(ctx context.Context, a Attachment, prefix string) (change, error) {
	row, err := b.iface(ctx, a.Name)
	if err != nil {
		return change{}, err
	}
	if row != nil {
		holder, ours := attachmentOf(row)
		if !ours || holder.ContainerID != a.ContainerID || holder.IfName != a.IfName {
			return change{}, fmt.Errorf("it belongs to another: %v", row.ExternalIDs)
		}
	}
	c := change{}
	if c.removed, err = b.conflictingPorts(ctx, a.LogicalPort, a.Name); err != nil {
		return change{}, err
	}
	switch {
	case row == nil:
		err = b.addPort(ctx, &c, a, prefix)
		return c, err
	case !a.is(row):
		want := &vswitch.Interface{ExternalIDs: merge(row.ExternalIDs, a.externalIDs())}
		if c.operations, err = b.client.Where(row).Update(want, &want.ExternalIDs); err != nil || !a.Mirrored {
			break
		}
		var ports []string
		if ports, err = b.ports(ctx, []string{a.Name}); err == nil {
			err = b.changeMirrored(ctx, &c, ovsdb.MutateOperationInsert, ports...)
		}
	}
	if err == nil && a.Limits != nil {
		err = b.limit(ctx, &c, a, row, *a.Limits, prefix)
	}
	return c, err
}

// addPort adds to c the port of a with its limits.
func (b *Bridge) addPort(ctx context.Context, c *change, a Attachment, prefix string) error {
	iface, port := &vswitch.Interface{Name: a.Name, ExternalIDs: a.externalIDs()}, &vswitch.Port{}
	if err := b.limitNew(ctx, c, a, iface, port, prefix); err != nil {
		return err
	}
	return b.insert(ctx, c, iface, port, prefix)
}

// Restore creates the port of a again, with its limits. It returns false, and changes nothing, if the port exists, or another one with the same logical port: that may
// belong to a newer container. A port of that name that another program has made is an error.
func (b *Bridge) Restore(ctx context.Context, a Attachment) (restored bool, err error) {
	err = b.commit(ctx, attachKeys(a), func(ctx context.Context, prefix string) (change, error) {
		restored = false // a transaction that failed is planned again
		row, err := b.iface(ctx, a.Name)
		if err != nil {
			return change{}, err
		}
		if row != nil {
			if holder, ours := attachmentOf(row); !ours || holder.ContainerID != a.ContainerID {
				return change{}, fmt.Errorf("another program has made a port of this name: delete it by ovs-vsctl del-port %s", a.Name)
			}
			return change{}, nil
		}
		conflicts, err := b.conflictingPorts(ctx, a.LogicalPort, a.Name)
		if err != nil || len(conflicts) > 0 {
			return change{}, err
		}
		restored = true
		c := change{}
		err = b.addPort(ctx, &c, a, prefix)
		return c, err
	})
	if err != nil {
		return false, fmt.Errorf("attach port %s again: %w", a.Name, err)
	}
	return restored, nil
}

// Detach removes ports in one transaction. It ignores missing ports.
func (b *Bridge) Detach(ctx context.Context, names ...string) error {
	err := b.commit(ctx, names, func(ctx context.Context, _ string) (c change, err error) {
		c.removed, err = b.ports(ctx, names)
		return c, err
	})
	if err != nil {
		return fmt.Errorf("detach ports %v: %w", names, err)
	}
	return nil
}

// Find returns the attachment of the port of that name; false if there is no such port, or it does not belong to a pod.
func (b *Bridge) Find(ctx context.Context, name string) (Attachment, bool, error) {
	row, err := b.iface(ctx, name)
	if err != nil || row == nil {
		return Attachment{}, false, err
	}
	a, ok := attachmentOf(row)
	return a, ok, nil
}

// Attachments returns the attachments of all pods.
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

// AttachmentsOf returns the attachments of a logical port, normally one.
func (b *Bridge) AttachmentsOf(ctx context.Context, logicalPort string) ([]Attachment, error) {
	rows, err := b.claiming(ctx, logicalPort)
	if err != nil {
		return nil, err
	}
	var out []Attachment
	for i := range rows {
		if a, ok := attachmentOf(&rows[i]); ok {
			out = append(out, a)
		}
	}
	return out, nil
}

// conflictingPorts returns all ports with that logical port except the named one.
func (b *Bridge) conflictingPorts(ctx context.Context, logicalPort, except string) ([]string, error) {
	rows, err := b.claiming(ctx, logicalPort)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, row := range rows {
		if row.Name != except {
			names = append(names, row.Name)
		}
	}
	return b.ports(ctx, names)
}

// claiming returns the interfaces whose iface-id is the logical port.
func (b *Bridge) claiming(ctx context.Context, logicalPort string) ([]vswitch.Interface, error) {
	var rows []vswitch.Interface
	index := &vswitch.Interface{ExternalIDs: map[string]string{keyLogicalPort: logicalPort}}
	if err := b.list(ctx, b.client.Where(index), &rows); err != nil && !isNotFound(err) {
		return nil, fmt.Errorf("look for ports of %s: %w", logicalPort, err)
	}
	return rows, nil
}

// ports returns the UUIDs of the ports of these names that exist.
func (b *Bridge) ports(ctx context.Context, names []string) ([]string, error) {
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
	return ports, nil
}

// insert adds to c an interface and its port, which may have columns of its own. The node's mirror selects the port if the record of the interface
// requests it.
func (b *Bridge) insert(ctx context.Context, c *change, iface *vswitch.Interface, port *vswitch.Port, prefix string) error {
	iface.UUID = prefix + "interface"
	port.UUID, port.Name, port.Interfaces = prefix+"port", iface.Name, []string{iface.UUID}
	for _, row := range []model.Model{iface, port} {
		created, err := b.client.Create(row)
		if err != nil {
			return err
		}
		c.operations = append(c.operations, created...)
	}
	c.added = append(c.added, port.UUID)
	if iface.ExternalIDs[keyMirrored] == mirrored {
		return b.changeMirrored(ctx, c, ovsdb.MutateOperationInsert, port.UUID)
	}
	return nil
}

// Internal is a port whose device ovs-vswitchd creates.
type Internal struct {
	Name        string
	LogicalPort string
	MAC         string
	MTU         int
}

// EnsureInternal creates or updates an internal port of the bridge in one transaction. It is idempotent.
func (b *Bridge) EnsureInternal(ctx context.Context, p Internal) error {
	err := b.commit(ctx, []string{p.Name, logicalPortKey(p.LogicalPort)}, func(ctx context.Context, prefix string) (change, error) {
		return b.ensureInternal(ctx, p, prefix)
	})
	if err != nil {
		return fmt.Errorf("make port %s: %w", p.Name, err)
	}
	return nil
}

func (b *Bridge) ensureInternal(ctx context.Context, p Internal, prefix string) (change, error) {
	row, err := b.iface(ctx, p.Name)
	if err != nil {
		return change{}, err
	}
	c := change{}
	if c.removed, err = b.conflictingPorts(ctx, p.LogicalPort, p.Name); err != nil {
		return change{}, err
	}
	ids := map[string]string{keyLogicalPort: p.LogicalPort, keyVendor: vendor}
	want := &vswitch.Interface{Name: p.Name, Type: "internal", MAC: &p.MAC, MTURequest: &p.MTU, ExternalIDs: ids}
	switch {
	case row == nil:
		err = b.insert(ctx, &c, want, &vswitch.Port{}, prefix)
	case row.Type != want.Type || !equal(row.MAC, want.MAC) || !equal(row.MTURequest, want.MTURequest) || !holds(row.ExternalIDs, ids):
		want.ExternalIDs = merge(row.ExternalIDs, ids)
		c.operations, err = b.client.Where(row).Update(want, &want.Type, &want.MAC, &want.MTURequest, &want.ExternalIDs)
	}
	return c, err
}

// merge adds the wanted keys to the existing ones and keeps keys of other programs. If the logical port or its version changes, it drops
// ovn-installed, which refers to the previous one.
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

// Installed reports whether ovn-controller has installed the flows of a port. It returns a PortError if ovs-vswitchd reports an error for
// the port.
func (b *Bridge) Installed(ctx context.Context, name string) (bool, error) {
	return b.holds(ctx, name, installed)
}

// WaitPort waits for an event of the database until ovs-vswitchd has assigned a port its number. It returns an error if ovs-vswitchd
// reports an error for the interface, or when ctx ends.
func (b *Bridge) WaitPort(ctx context.Context, name string) error {
	return b.wait(ctx, name, func(row *vswitch.Interface) bool { return row.Ofport != nil && *row.Ofport > 0 })
}

// WaitInstalled waits, like WaitPort, until ovn-controller has installed the flows of a port.
func (b *Bridge) WaitInstalled(ctx context.Context, name string) error {
	return b.wait(ctx, name, installed)
}

func installed(row *vswitch.Interface) bool { return row.ExternalIDs[keyInstalled] == "true" }

func (b *Bridge) wait(ctx context.Context, name string, until func(*vswitch.Interface) bool) error {
	changed, stop := b.changes.watch(name)
	defer stop()
	for {
		done, err := b.holds(ctx, name, until)
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

// holds reports whether an interface exists and satisfies the condition. It returns a PortError if ovs-vswitchd reports an error for the
// interface.
func (b *Bridge) holds(ctx context.Context, name string, asked func(*vswitch.Interface) bool) (bool, error) {
	row, err := b.iface(ctx, name)
	switch {
	case err != nil:
		return false, err
	case row == nil:
		return false, nil
	case row.Error != nil:
		return false, &PortError{Port: name, Reason: *row.Error}
	}
	return asked(row), nil
}
