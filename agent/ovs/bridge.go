// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ovs gives the agent access to the integration bridge of this node. It adds and removes ports of pods and of the node in one
// transaction each, and waits for the state that ovn-controller and ovs-vswitchd report about them.
package ovs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/model"

	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

// IntegrationBridge is the bridge that ovn-controller creates and programs.
const IntegrationBridge = "br-int"

// Timeouts of one transaction, and of one read of the replica: libovsdb blocks both while the server is disconnected.
const (
	transactTimeout = 10 * time.Second
	readTimeout     = 5 * time.Second
)

// Temporary errors.
var (
	// ErrDisconnected means that the Open vSwitch database cannot be reached.
	ErrDisconnected = errors.New("the Open vSwitch database does not answer; see the pod ovs-ovn of this node")
	// ErrNoBridge means that ovn-controller has not created the integration bridge yet.
	ErrNoBridge = errors.New("there is no bridge br-int; ovn-controller makes it, see the pod ovs-ovn of this node")
)

// Bridge is the integration bridge. Its methods are safe for concurrent use.
type Bridge struct {
	client   *client.Client
	changes  watchers
	requests committer
}

// New returns the integration bridge of the database that c is connected to. The bridge itself need not exist yet.
func New(c *client.Client) *Bridge {
	exportMetrics()
	b := &Bridge{client: c}
	signal := func(_ string, row model.Model) { b.changes.signal(nameOf(row)) }
	c.Cache().AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc: signal,
		DeleteFunc: func(table string, row model.Model) {
			signal(table, row)
			b.changes.signalDeleted(row)
		},
		UpdateFunc: func(table string, before, row model.Model) {
			if !onlyPorts(before, row) {
				signal(table, row)
			}
		},
	})
	return b
}

// onlyPorts reports whether an update of a bridge changes only its list of ports. Such an update is redundant, because ports have their
// own events, and occurs with every pod.
func onlyPorts(before, after model.Model) bool {
	old, ok := before.(*vswitch.Bridge)
	bridge, same := after.(*vswitch.Bridge)
	if !ok || !same {
		return false
	}
	but := *bridge
	but.Ports = old.Ports
	return but.Equals(old)
}

// nameOf returns the name under which watchers wait for a row: the name of an interface, port, bridge or mirror, and "" for other rows.
func nameOf(row model.Model) string {
	switch row := row.(type) {
	case *vswitch.Interface:
		return row.Name
	case *vswitch.Port:
		return row.Name
	case *vswitch.Bridge:
		return row.Name
	case *vswitch.Mirror:
		return row.Name
	}
	return ""
}

// Subscribe calls f with the name of each interface, port, bridge or mirror that changes, and with "" for other rows, such as the settings in
// Open_vSwitch. Adding a port to a bridge, or removing one, is not a change of the bridge. f must not block.
func (b *Bridge) Subscribe(f func(name string)) { b.changes.subscribe(f) }

// SubscribeDeleted calls f with the last record of each port of a pod that is deleted, by this process or by another program. f must not block.
// Ports that are deleted while the database is disconnected may cause no call.
func (b *Bridge) SubscribeDeleted(f func(Attachment)) { b.changes.subscribeDeleted(f) }

// Ready returns nil if the database is connected and the integration bridge exists.
func (b *Bridge) Ready(ctx context.Context) error {
	if !b.client.Connected() {
		return ErrDisconnected
	}
	_, err := b.row(ctx)
	return err
}

// Userspace reports whether ovs-vswitchd forwards packets itself (datapath_type netdev) instead of the kernel.
func (b *Bridge) Userspace(ctx context.Context) (bool, error) {
	row, err := b.row(ctx)
	if err != nil {
		return false, err
	}
	return row.DatapathType == "netdev", nil
}

// Encapsulation returns the address of this node's tunnels, the first one if there are several (ovn-controller(8)).
func (b *Bridge) Encapsulation(ctx context.Context) (netip.Addr, error) {
	row, err := b.root(ctx)
	if err != nil {
		return netip.Addr{}, err
	}
	first, _, _ := strings.Cut(row.ExternalIDs["ovn-encap-ip"], ",")
	address, err := netip.ParseAddr(first)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("ovn-encap-ip of Open_vSwitch, which the pod ovs-ovn sets: %w", err)
	}
	return address.Unmap(), nil
}

// row returns the integration bridge from the replica.
func (b *Bridge) row(ctx context.Context) (*vswitch.Bridge, error) {
	row := &vswitch.Bridge{Name: IntegrationBridge}
	switch err := b.get(ctx, row); {
	case isNotFound(err):
		return nil, ErrNoBridge
	case err != nil:
		return nil, fmt.Errorf("read bridge %s: %w", IntegrationBridge, err)
	}
	return row, nil
}

// iface returns an interface from the replica; nil if there is none of that name.
func (b *Bridge) iface(ctx context.Context, name string) (*vswitch.Interface, error) {
	row := &vswitch.Interface{Name: name}
	switch err := b.get(ctx, row); {
	case isNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read interface %s: %w", name, err)
	}
	return row, nil
}

// get fills a row from the replica by its index.
func (b *Bridge) get(ctx context.Context, row model.Model) error {
	return reading(ctx, func(ctx context.Context) error { return b.client.Get(ctx, row) })
}

// lister is the client, or a condition on its rows.
type lister interface {
	List(context.Context, any) error
}

func (b *Bridge) list(ctx context.Context, from lister, rows any) error {
	return reading(ctx, func(ctx context.Context) error { return from.List(ctx, rows) })
}

func reading(ctx context.Context, read func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	err := read(limited)
	if limited.Err() != nil && ctx.Err() == nil {
		return ErrDisconnected
	}
	return err
}
