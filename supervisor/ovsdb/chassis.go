// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"fmt"
)

// ofNodes are the conditions for rows of Chassis that ovn-controllers of nodes have registered. OVN-IC inserts chassis of other clusters, and
// ovn-controller-vtep those of gateways (ovn-sb(5)).
func ofNodes(more ...any) []any {
	return append([]any{
		[]any{"other_config", "excludes", []any{"map", [][]string{{"is-remote", "true"}}}},
		[]any{"vtep_logical_switches", "==", []any{"set", []any{}}},
	}, more...)
}

// operationResult is a result of an operation in a transaction (RFC 7047, section 5.2).
type operationResult struct {
	Rows           []struct{ Name string }
	Error, Details string
}

// Chassis implements adminapi.Database.
func (m *member) Chassis(ctx context.Context) ([]string, error) {
	results, err := m.transact(ctx, map[string]any{"op": "select", "table": "Chassis", "where": ofNodes(), "columns": []string{"name"}})
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(results[0].Rows))
	for _, row := range results[0].Rows {
		names = append(names, row.Name)
	}
	return names, nil
}

// RemoveChassis implements adminapi.Database. The server deletes the encapsulations of a deleted chassis.
func (m *member) RemoveChassis(ctx context.Context, names []string) error {
	var operations []any
	for _, name := range names {
		is := []any{"name", "==", name}
		operations = append(operations,
			map[string]any{"op": "delete", "table": "Chassis", "where": ofNodes(is)},
			map[string]any{"op": "delete", "table": "Chassis_Private", "where": []any{is}})
	}
	_, err := m.transact(ctx, operations...)
	return err
}

// transact executes operations in one transaction. It returns one result for each.
func (m *member) transact(ctx context.Context, operations ...any) ([]operationResult, error) {
	var results []operationResult
	if err := m.ask(ctx, "transact", append([]any{m.options.Database.Name}, operations...), &results); err != nil {
		return nil, err
	}
	for _, r := range results {
		if r.Error != "" {
			return nil, fmt.Errorf("transact on %s: %s: %s", m.options.Database.Name, r.Error, r.Details)
		}
	}
	if len(results) < len(operations) {
		return nil, fmt.Errorf("transact on %s: %d results of %d operations", m.options.Database.Name, len(results), len(operations))
	}
	return results, nil
}
