// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"errors"
	"fmt"

	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

// session is a row of the southbound table BFD.
type session struct {
	UUID    jsonrpc.UUID `json:"_uuid"`
	Port    string       `json:"logical_port"`
	Chassis string       `json:"chassis_name"`
}

// keepSessions writes, until ctx ends, which chassis runs each BFD session of a distributed router port. ovn-northd 25.03 writes it for ports of gateway routers only.
// Without it, the server refuses each transaction in which an ovn-controller reports the state of its session (RBAC), with all other changes in it.
func (m *member) keepSessions(ctx context.Context) {
	report := func(err error) {
		if ctx.Err() == nil {
			m.options.Log.Error(err, "BFD sessions with physical routers may keep the state that they have")
		}
	}
	supervisor.Retry(ctx, report, func() error { return m.watchSessions(ctx) })
}

// watchSessions assigns sessions until the connection breaks. A notification only wakes it up: the rows are read again, so that the format of updates does not matter.
// The state of sessions and ports without a chassisredirect binding cause no notification.
func (m *member) watchSessions(ctx context.Context) error {
	conn, err := jsonrpc.Dial(ctx, m.options.socket())
	if err != nil {
		return fmt.Errorf("watch BFD sessions: %w", err)
	}
	defer conn.Close()
	request := []any{m.options.Database.Name, nil, map[string]any{
		"BFD":          []any{map[string]any{"columns": []string{"logical_port", "chassis_name"}}},
		"Port_Binding": []any{map[string]any{"columns": []string{"chassis"}, "where": []any{redirects}}},
	}}
	if err := conn.Call("monitor_cond", request, nil); err != nil { // ovsdb-server(7)
		return fmt.Errorf("watch BFD sessions: %w", err)
	}
	for {
		if err := m.assignSessions(ctx, conn); err != nil {
			return err
		}
		if _, err := conn.Receive(); err != nil {
			return fmt.Errorf("watch BFD sessions: %w", err)
		}
	}
}

// redirects is the condition for the bindings of distributed router ports to chassis (ovn-sb(5), Port_Binding).
var redirects = []any{"type", "==", "chassisredirect"}

// assignSessions writes chassis_name of the sessions whose port a chassis has. Others keep theirs: no chassis runs them.
func (m *member) assignSessions(ctx context.Context, conn *jsonrpc.Conn) error {
	name := m.options.Database.Name
	var sessions []session
	if err := conn.Select(name, "BFD", []string{"_uuid", "logical_port", "chassis_name"}, nil, &sessions); err != nil || len(sessions) == 0 {
		return err
	}
	var bindings []struct {
		Options jsonrpc.Map[string]
		Chassis jsonrpc.Set[jsonrpc.UUID]
	}
	var chassis []struct {
		UUID jsonrpc.UUID `json:"_uuid"`
		Name string
	}
	if err := errors.Join(
		conn.Select(name, "Port_Binding", []string{"options", "chassis"}, []any{redirects}, &bindings),
		conn.Select(name, "Chassis", []string{"_uuid", "name"}, nil, &chassis),
	); err != nil {
		return err
	}
	names := make(map[jsonrpc.UUID]string, len(chassis))
	for _, c := range chassis {
		names[c.UUID] = c.Name
	}
	hosts := make(map[string]string, len(bindings))
	for _, b := range bindings {
		hosts[b.Options["distributed-port"]] = names[b.Chassis.First()]
	}
	var operations []any
	for _, s := range sessions {
		if host := hosts[s.Port]; host != "" && host != s.Chassis {
			operations = append(operations, map[string]any{
				"op": "update", "table": "BFD", "where": []any{[]any{"_uuid", "==", []any{"uuid", s.UUID}}}, "row": map[string]any{"chassis_name": host},
			})
		}
	}
	if len(operations) == 0 {
		return nil
	}
	_, err := m.transact(ctx, operations...)
	return err
}
