// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

const (
	// MirrorInterface is the internal port of the integration bridge to which the node's mirror copies packets. Open vSwitch drops packets that enter
	// the bridge through it, and copies none of its packets, so there is no loop.
	MirrorInterface = "mirror0"
	// MirrorName is the name of the node's mirror. The name and the port are Kube-OVN's, so its mirror is taken over.
	MirrorName = "m0"
	// MaxMirrors is the number of mirrors that a bridge can have. ovs-vswitchd ignores further ones, and only logs it.
	MaxMirrors = 32

	// mirrored is the value of keyMirrored.
	mirrored = "true"
	// mirrorMTU is above the MTU of every pod: the kernel datapath drops packets that are longer than the MTU of the port they leave through.
	mirrorMTU = 65000
	// mirrorKey serializes requests that change which ports the mirror has: EnsureMirror reads the records of all ports.
	mirrorKey = "mirror " + MirrorName
)

// attachKeys returns the keys of requests that write the port of a.
func attachKeys(a Attachment) []string {
	keys := []string{a.Name, logicalPortKey(a.LogicalPort)}
	if a.Mirrored {
		keys = append(keys, mirrorKey)
	}
	return keys
}

// EnsureMirror makes the node's mirror and its output port, in one transaction. The mirror selects all ports of the bridge, or the ports whose
// attachment is Mirrored, in both directions. It is idempotent.
func (b *Bridge) EnsureMirror(ctx context.Context, all bool) error {
	err := b.commit(ctx, []string{MirrorInterface, mirrorKey}, func(ctx context.Context, prefix string) (change, error) {
		return b.ensureMirror(ctx, all, prefix)
	})
	if err != nil {
		return fmt.Errorf("make the mirror %s: %w", MirrorName, err)
	}
	return nil
}

func (b *Bridge) ensureMirror(ctx context.Context, all bool, prefix string) (change, error) {
	c := change{}
	output, err := b.ensureMirrorPort(ctx, &c, prefix)
	if err != nil {
		return change{}, err
	}
	ports, err := b.mirroredPorts(ctx)
	if err != nil {
		return change{}, err
	}
	row, err := b.mirror(ctx)
	if err != nil {
		return change{}, err
	}
	ids := map[string]string{keyVendor: vendor}
	want := &vswitch.Mirror{Name: MirrorName, OutputPort: &output, SelectAll: all, SelectSrcPort: ports, SelectDstPort: ports, ExternalIDs: ids}
	var more []ovsdb.Operation
	switch {
	case row == nil:
		want.UUID = prefix + "mirror"
		if more, err = b.client.Create(want); err == nil {
			c.operations = append(c.operations, more...)
			more, err = b.changeMirrors(ctx, ovsdb.MutateOperationInsert, want.UUID)
		}
	case row.SelectAll != all || !equal(row.OutputPort, &output) || !sameSet(row.SelectSrcPort, ports) || !sameSet(row.SelectDstPort, ports) || !holds(row.ExternalIDs, ids):
		maps.Copy(want.ExternalIDs, row.ExternalIDs)
		want.ExternalIDs[keyVendor] = vendor
		more, err = b.client.Where(row).Update(want, &want.OutputPort, &want.SelectAll, &want.SelectSrcPort, &want.SelectDstPort, &want.ExternalIDs)
	}
	c.operations = append(c.operations, more...)
	return c, err
}

// ensureMirrorPort adds the missing rows of the output port to c, and returns its UUID, or its name in the transaction that creates it.
func (b *Bridge) ensureMirrorPort(ctx context.Context, c *change, prefix string) (string, error) {
	mtu, ids := mirrorMTU, map[string]string{keyVendor: vendor}
	row, err := b.iface(ctx, MirrorInterface)
	if err != nil {
		return "", err
	}
	if row == nil {
		err := b.insert(ctx, c, &vswitch.Interface{Name: MirrorInterface, Type: "internal", MTURequest: &mtu, ExternalIDs: ids}, &vswitch.Port{}, prefix)
		return prefix + "port", err
	}
	port := &vswitch.Port{Name: MirrorInterface}
	if err := b.get(ctx, port); err != nil {
		return "", fmt.Errorf("read port %s: %w", MirrorInterface, err)
	}
	bridge, err := b.row(ctx)
	switch {
	case err != nil:
		return "", err
	case row.Type != "internal" || !slices.Contains(bridge.Ports, port.UUID):
		return "", fmt.Errorf("%s exists, and is no internal port of %s: delete it by ovs-vsctl del-port %[1]s", MirrorInterface, IntegrationBridge)
	case equal(row.MTURequest, &mtu) && holds(row.ExternalIDs, ids):
		return port.UUID, nil
	}
	want := &vswitch.Interface{MTURequest: &mtu, ExternalIDs: merge(row.ExternalIDs, ids)}
	update, err := b.client.Where(row).Update(want, &want.MTURequest, &want.ExternalIDs)
	c.operations = append(c.operations, update...)
	return port.UUID, err
}

// RemoveMirror removes the node's mirror and its output port, if EnsureMirror has made them.
func (b *Bridge) RemoveMirror(ctx context.Context) error {
	err := b.commit(ctx, []string{MirrorInterface, mirrorKey}, func(ctx context.Context, _ string) (c change, err error) {
		row, err := b.mirror(ctx)
		if err != nil {
			return c, err
		}
		if row != nil && row.ExternalIDs[keyVendor] == vendor {
			if c.operations, err = b.changeMirrors(ctx, ovsdb.MutateOperationDelete, row.UUID); err != nil {
				return c, err
			}
		}
		iface, err := b.iface(ctx, MirrorInterface)
		if err == nil && iface != nil && iface.ExternalIDs[keyVendor] == vendor {
			c.removed, err = b.ports(ctx, []string{MirrorInterface})
		}
		return c, err
	})
	if err != nil {
		return fmt.Errorf("remove the mirror %s: %w", MirrorName, err)
	}
	return nil
}

// SetMirrored records whether the packets of a pod's port are copied, and adds the port to the mirror or removes it, in one transaction. It ignores a
// missing port.
func (b *Bridge) SetMirrored(ctx context.Context, name string, on bool) error {
	err := b.commit(ctx, []string{name, mirrorKey}, func(ctx context.Context, _ string) (c change, err error) {
		row, err := b.iface(ctx, name)
		if err != nil || row == nil {
			return c, err
		}
		if a, ours := attachmentOf(row); !ours || a.Mirrored == on {
			return c, nil
		}
		want := &vswitch.Interface{ExternalIDs: maps.Clone(row.ExternalIDs)}
		mutator := ovsdb.MutateOperationDelete
		delete(want.ExternalIDs, keyMirrored)
		if on {
			mutator, want.ExternalIDs[keyMirrored] = ovsdb.MutateOperationInsert, mirrored
		}
		if c.operations, err = b.client.Where(row).Update(want, &want.ExternalIDs); err != nil {
			return c, err
		}
		ports, err := b.ports(ctx, []string{name})
		if err == nil {
			err = b.changeMirrored(ctx, &c, mutator, ports...)
		}
		return c, err
	})
	if err != nil {
		return fmt.Errorf("mirror port %s: %w", name, err)
	}
	return nil
}

// changeMirrored adds to c the insertion of ports into the node's mirror, or their removal. Without a mirror it does nothing: EnsureMirror reads the
// records of ports.
func (b *Bridge) changeMirrored(ctx context.Context, c *change, mutator ovsdb.Mutator, ports ...string) error {
	row, err := b.mirror(ctx)
	if err != nil || row == nil {
		return err
	}
	more, err := b.client.Where(row).Mutate(row,
		model.Mutation{Field: &row.SelectSrcPort, Mutator: mutator, Value: ports},
		model.Mutation{Field: &row.SelectDstPort, Mutator: mutator, Value: ports})
	c.operations = append(c.operations, more...)
	return err
}

// mirror returns the node's mirror; nil if the integration bridge has none of that name.
func (b *Bridge) mirror(ctx context.Context) (*vswitch.Mirror, error) {
	bridge, err := b.row(ctx)
	if err != nil {
		return nil, err
	}
	var rows []vswitch.Mirror
	if err := b.list(ctx, b.client.Where(&vswitch.Mirror{Name: MirrorName}), &rows); err != nil && !isNotFound(err) {
		return nil, fmt.Errorf("look for the mirror: %w", err)
	}
	for i := range rows {
		if slices.Contains(bridge.Mirrors, rows[i].UUID) {
			return &rows[i], nil
		}
	}
	return nil, nil
}

// tunnelName matches the names of the tunnels that ovn-controller makes for mirrors of TrafficMirrors. A tunnel to a node has the node's name in the same
// place, with a hyphen behind it.
var tunnelName = regexp.MustCompile(`^ovn-m[0-9a-f]{10}$`)

// ConcernsMirrors reports whether a change of a row with a name can change the node's mirror, or MirrorProblems.
func ConcernsMirrors(name string) bool {
	return name == MirrorName || name == MirrorInterface || name == IntegrationBridge || tunnelName.MatchString(name)
}

// MirrorProblems describes what Open vSwitch does not do about the mirrors of the integration bridge: the node's, and the mirrors of ovn-controller and of
// users. Open vSwitch itself only logs it.
func (b *Bridge) MirrorProblems(ctx context.Context) (problems []string, err error) {
	bridge, err := b.row(ctx)
	if err != nil {
		return nil, err
	}
	if n := len(bridge.Mirrors); n > MaxMirrors {
		problems = append(problems, fmt.Sprintf("bridge %s has %d mirrors, and Open vSwitch uses only %d of them: delete TrafficMirrors, or mirrors of `kubectl ko nbctl mirror-add`",
			IntegrationBridge, n, MaxMirrors))
	}
	var tunnels []vswitch.Interface
	failed := func(row *vswitch.Interface) bool {
		return row.Error != nil && tunnelName.MatchString(row.Name)
	}
	if err := b.list(ctx, b.client.WhereCache(failed), &tunnels); err != nil {
		return nil, fmt.Errorf("read tunnels of mirrors: %w", err)
	}
	slices.SortFunc(tunnels, func(a, b vswitch.Interface) int { return strings.Compare(a.Name, b.Name) })
	for _, t := range tunnels {
		problems = append(problems, fmt.Sprintf("packets are not copied to %s with key %s, because Open vSwitch cannot make the tunnel (%s): %s. Load the kernel module ip_gre, or ip6_gre for IPv6",
			t.Options["remote_ip"], t.Options["key"], t.Type, *t.Error))
	}
	return problems, nil
}

// mirroredPorts returns the UUIDs of the ports whose attachment is Mirrored.
func (b *Bridge) mirroredPorts(ctx context.Context) ([]string, error) {
	attachments, err := b.Attachments(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, a := range attachments {
		if a.Mirrored {
			names = append(names, a.Name)
		}
	}
	return b.ports(ctx, names)
}

func (b *Bridge) changeMirrors(ctx context.Context, mutator ovsdb.Mutator, mirror string) ([]ovsdb.Operation, error) {
	bridge, err := b.row(ctx)
	if err != nil {
		return nil, err
	}
	return b.client.Where(bridge).Mutate(bridge, model.Mutation{Field: &bridge.Mirrors, Mutator: mutator, Value: []string{mirror}})
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
