// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package client connects to OVSDB servers. Northbound returns a Session for the engine: a connection to the leader with a
// replica that is consistent after every message. VSwitch returns libovsdb's own client for node programs.
package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/ovsdb/vswitch"
)

// Timing of every connection. ovsdb-server answers an echo between two transactions. So a dead peer is detected after
// probeInterval plus probeTimeout, or after answerInterval plus probeTimeout while a transaction is in flight. probeTimeout
// must exceed the longest transaction.
const (
	probeInterval  = 10 * time.Second
	answerInterval = 2 * time.Second
	probeTimeout   = 8 * time.Second
	// leaderTimeout bounds a connection attempt: dial, TLS handshake, and the reply to the leadership request.
	leaderTimeout = 5 * time.Second
	// connectTimeout bounds the initial read of the whole database.
	connectTimeout = 60 * time.Second
	// transactTimeout bounds the reply to a transaction. A cluster member that loses its quorum during a transaction may never
	// reply.
	transactTimeout = 30 * time.Second
	minBackoff      = 50 * time.Millisecond
	maxBackoff      = 5 * time.Second
)

// Options of a connection.
type Options struct {
	// Endpoints in OVSDB's form (ovsdb(7)): "ssl:[2001:db8::1]:6641", "tcp:127.0.0.1:6641", "unix:/run/ovn/ovnnb_db.sock".
	Endpoints []string
	// TLS is for ssl: endpoints; see tlsdir.Client.
	TLS *tls.Config
	Log logr.Logger
	// leaderTimeout replaces the constant in tests.
	leaderTimeout time.Duration
}

// Client is libovsdb's client, connected and with its monitor established. It reconnects automatically.
type Client struct{ client.Client }

// SetEndpoints changes the servers to connect to. A connection to a server that is still listed stays open.
func (c *Client) SetEndpoints(endpoints []string) { c.UpdateEndpoints(endpoints) }

// VSwitch connects to the Open vSwitch database of this node and monitors its configuration: every column of the tables that
// node programs write, except counters that ovs-vswitchd refreshes every few seconds. Interfaces are indexed by their iface-id, mirrors by name, QoS
// and Queue rows by the port that they name.
func VSwitch(ctx context.Context, o Options) (*Client, error) {
	dbModel, err := vswitch.FullDatabaseModel()
	if err != nil {
		return nil, fmt.Errorf("model of Open_vSwitch: %w", err)
	}
	byPort := []model.ClientIndex{{Columns: []model.ColumnKey{{Column: "external_ids", Key: "port"}}}}
	dbModel.SetIndexes(map[string][]model.ClientIndex{
		vswitch.InterfaceTable: {{Columns: []model.ColumnKey{{Column: "external_ids", Key: "iface-id"}}}},
		vswitch.MirrorTable:    {{Columns: []model.ColumnKey{{Column: "name"}}}},
		vswitch.QoSTable:       byPort,
		vswitch.QueueTable:     byPort,
	})
	log := o.Log.V(4)
	opts := []client.Option{
		client.WithLogger(&log),
		// No inactivity check: libovsdb v0.8.1 may send on its inactivity channel after a disconnection closed it, and panic. A
		// node's server is on a Unix socket, which reports a closed peer at once; callers bound their transactions.
		client.WithReconnect(probeTimeout, reconnectBackoff()),
	}
	for _, endpoint := range o.Endpoints {
		opts = append(opts, client.WithEndpoint(endpoint))
	}
	if o.TLS != nil {
		opts = append(opts, client.WithTLSConfig(o.TLS))
	}
	ovs, err := client.NewOVSDBClient(dbModel, opts...)
	if err != nil {
		return nil, fmt.Errorf("client of Open_vSwitch: %w", err)
	}
	if err := ovs.Connect(ctx); err != nil {
		return nil, fmt.Errorf("connect to Open_vSwitch: %w", err)
	}
	if _, err := ovs.Monitor(ctx, vswitchMonitor(ovs)); err != nil {
		ovs.Close()
		return nil, fmt.Errorf("monitor Open_vSwitch: %w", err)
	}
	return &Client{Client: ovs}, nil
}

func vswitchMonitor(ovs client.Client) *client.Monitor {
	volatile := []string{"statistics", "rstp_statistics", "rstp_status", "cur_cfg", "link_resets"}
	monitor := ovs.NewMonitor()
	for _, table := range []string{
		vswitch.OpenvSwitchTable, vswitch.BridgeTable, vswitch.PortTable, vswitch.InterfaceTable,
		vswitch.QoSTable, vswitch.QueueTable, vswitch.MirrorTable,
	} {
		monitor.Tables = append(monitor.Tables, client.TableMonitor{
			Table:  table,
			Fields: columnsExcept(ovs.Schema().Table(table), volatile...),
		})
	}
	return monitor
}

func columnsExcept(table *ovsdb.TableSchema, except ...string) []string {
	columns := make([]string, 0, len(table.Columns))
	for column := range table.Columns {
		if !slices.Contains(except, column) {
			columns = append(columns, column)
		}
	}
	slices.Sort(columns)
	return columns
}

func reconnectBackoff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(minBackoff), backoff.WithMaxInterval(maxBackoff), backoff.WithMaxElapsedTime(0))
}
