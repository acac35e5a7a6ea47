// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/kiln-net/kiln/internal/supervisor/jsonrpc"
)

// standing is what a member's row in the database _Server says (ovsdb-server(5)).
type standing struct {
	Name      string `json:"name"`
	Leader    bool   `json:"leader"`
	Connected bool   `json:"connected"`
}

// watchStanding calls changed with the member's standing, now and at each change, until the connection breaks, ctx ends or changed fails.
func watchStanding(ctx context.Context, socket, database string, changed func(standing) error) error {
	conn, err := jsonrpc.Dial(ctx, socket)
	if err != nil {
		return fmt.Errorf("watch the member: %w", err)
	}
	defer conn.Close()
	request := []any{"_Server", nil, map[string]any{
		"Database": []any{map[string]any{"columns": []string{"name", "leader", "connected"}}},
	}}
	var first json.RawMessage
	if err := conn.Call("monitor", request, &first); err != nil {
		return fmt.Errorf("watch the member: %w", err)
	}
	known := false
	for update := first; ; {
		present, err := readStanding(update, database, changed)
		if err != nil {
			return err
		}
		if known = known || present; !known {
			return errLeft // it gives the database up, and then closes all connections
		}
		n, err := conn.Receive()
		if err != nil {
			return fmt.Errorf("watch the member: %w", err)
		}
		var params []json.RawMessage // the monitor's name and the update (RFC 7047, section 4.1.6)
		if err := json.Unmarshal(n.Params, &params); err != nil || len(params) != 2 {
			return fmt.Errorf("watch the member: malformed %s: %s", n.Method, n.Params)
		}
		update = params[1]
	}
}

// errLeft says that the server has given the database up: it has left the cluster, or was kicked. It never takes part again.
var errLeft = errors.New("the member has left the cluster")

// readStanding reports whether the update has the member's row.
func readStanding(update json.RawMessage, database string, changed func(standing) error) (present bool, err error) {
	var tables map[string]map[string]struct {
		New *standing `json:"new"`
	}
	if err := json.Unmarshal(update, &tables); err != nil {
		return false, fmt.Errorf("decode the member's standing: %w", err)
	}
	for _, row := range tables["Database"] {
		if row.New != nil && row.New.Name == database {
			return true, changed(*row.New)
		}
	}
	return false, nil
}
