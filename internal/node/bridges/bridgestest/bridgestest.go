// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bridgestest requests bridges of provider networks in tests as the agent does, and reads addresses that have moved.
package bridgestest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/bridges/database"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// Switch is an Open vSwitch with the runtime directory RunDir.
type Switch struct{ RunDir string }

// Socket is the path of the socket of its database.
func (s Switch) Socket() string { return filepath.Join(s.RunDir, "db.sock") }

// Connect waits for the database and connects to it. It returns nil if ctx ends first.
func (s Switch) Connect(ctx context.Context) *client.Client {
	for ctx.Err() == nil {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", s.Socket())
		if err == nil {
			_ = conn.Close()
			if db, err := client.VSwitch(ctx, client.Options{Endpoints: []string{"unix:" + s.Socket()}, Log: logr.Discard()}); err == nil {
				return db
			}
		}
		supervisor.Pause(ctx, 10*time.Millisecond)
	}
	return nil
}

// Database connects to the database; nil if the process that serves it ends first.
func (s Switch) Database(t *testing.T, ended chan struct{}) *client.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() {
		select {
		case <-ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	return s.Connect(ctx)
}

// Request writes the requests of an agent.
func (s Switch) Request(t *testing.T, ended chan struct{}, requests map[string]providerbridge.Request) {
	t.Helper()
	db := s.Database(t, ended)
	if db == nil {
		t.Fatal("the database is not reached")
	}
	defer db.Close()
	supervisortest.Eventually(t, "the request is written", func() error {
		select {
		case <-ended: // it has seen the request
			return nil
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		row, err := database.Root(ctx, db)
		if err != nil {
			return err
		}
		remove, insert := providerbridge.Changes(row.ExternalIDs, requests)
		return database.SetIDs(ctx, db, remove, insert)
	})
}

// Results returns the results, and external_ids of Open_vSwitch.
func (s Switch) Results(t *testing.T, ended chan struct{}) (map[string]providerbridge.Result, map[string]string, error) {
	t.Helper()
	db := s.Database(t, ended)
	if db == nil {
		return nil, nil, errors.New("the database is not reached")
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	row, err := database.Root(ctx, db)
	if err != nil {
		return nil, nil, err
	}
	return providerbridge.Results(row.ExternalIDs), row.ExternalIDs, nil
}

// Lacking returns the prefixes that no address has.
func Lacking(want []netip.Prefix, have []kernel.Address) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(want), func(p netip.Prefix) bool { return slices.Contains(kernel.Prefixes(have), p) })
}

// Moved returns an error unless br-phy has what eth1 of nodetest.Wire had, and further addresses.
func Moved(more ...string) error {
	bridge, err := kernel.Link(providerbridge.Tunnels)
	if err != nil || bridge == nil {
		return fmt.Errorf("br-phy is not there: %w", err)
	}
	eth1, err := netlink.LinkByName("eth1")
	if err != nil {
		return err
	}
	seen, err := kernel.Observe(eth1, bridge)
	if err != nil {
		return err
	}
	want := nodetest.Prefixes(append([]string{"192.0.2.1/24", "2001:db8::1/64"}, more...)...)
	if missing := Lacking(want, seen.BridgeAddresses); len(missing) > 0 || len(seen.UplinkAddresses) > 0 {
		return fmt.Errorf("addresses: br-phy has %v, eth1 %v", seen.BridgeAddresses, seen.UplinkAddresses)
	}
	if len(seen.BridgeRoutes) != 2 || len(seen.UplinkRoutes) > 0 {
		return fmt.Errorf("routes: br-phy has %v, eth1 %v", seen.BridgeRoutes, seen.UplinkRoutes)
	}
	if !slices.Equal(bridge.Attrs().HardwareAddr, eth1.Attrs().HardwareAddr) || bridge.Attrs().MTU != eth1.Attrs().MTU {
		return fmt.Errorf("br-phy has MAC %s and MTU %d", bridge.Attrs().HardwareAddr, bridge.Attrs().MTU)
	}
	return nil
}
