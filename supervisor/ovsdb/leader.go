// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

// watchLeader calls changed with whether this member is the leader, now and at each change, until the connection breaks or ctx
// ends. It monitors the member's row in the database _Server (ovsdb-server(5)).
func watchLeader(ctx context.Context, socket, database string, changed func(leads bool)) error {
	conn, err := jsonrpc.Dial(ctx, socket)
	if err != nil {
		return fmt.Errorf("watch the leader: %w", err)
	}
	defer conn.Close()
	// This is a separate request: the member's row in _Server appears some time after the server starts to listen.
	var databases []string
	if err := conn.Call("list_dbs", []any{}, &databases); err != nil {
		return fmt.Errorf("ask for the server's databases: %w", err)
	}
	if !slices.Contains(databases, database) {
		return errLeft // the server drops the database first and closes all connections later
	}
	request := []any{"_Server", nil, map[string]any{
		"Database": []any{map[string]any{"columns": []string{"name", "leader"}}},
	}}
	var first json.RawMessage
	if err := conn.Call("monitor", request, &first); err != nil {
		return fmt.Errorf("watch the leader: %w", err)
	}
	for update := first; ; {
		if err := readLeader(update, database, changed); err != nil {
			return err
		}
		n, err := conn.Receive()
		if err != nil {
			return fmt.Errorf("watch the leader: %w", err)
		}
		var params []json.RawMessage // the monitor's name and the update (RFC 7047, section 4.1.6)
		if err := json.Unmarshal(n.Params, &params); err != nil || len(params) != 2 {
			return fmt.Errorf("watch the leader: malformed %s: %s", n.Method, n.Params)
		}
		update = params[1]
	}
}

// errLeft is returned when the server has dropped the database: it has left the cluster or was kicked, and never rejoins by
// itself.
var errLeft = errors.New("the member has left the cluster")

// readLeader calls changed if an update contains the member's row.
func readLeader(update json.RawMessage, database string, changed func(leads bool)) error {
	var tables map[string]map[string]struct {
		New *struct {
			Name   string `json:"name"`
			Leader bool   `json:"leader"`
		} `json:"new"`
	}
	if err := json.Unmarshal(update, &tables); err != nil {
		return fmt.Errorf("decode the leader: %w", err)
	}
	for _, row := range tables["Database"] {
		if row.New != nil && row.New.Name == database {
			changed(row.New.Leader)
		}
	}
	return nil
}
