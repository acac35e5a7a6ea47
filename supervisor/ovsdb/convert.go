// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/jsonrpc"
)

// Schemas implements adminapi.Database.
func (m *member) Schemas(ctx context.Context) (adminapi.Schemas, error) {
	var s adminapi.Schemas
	_, image, err := m.ownSchema()
	if err != nil {
		return s, err
	}
	var now struct{ Version string }
	if err := m.ask(ctx, "get_schema", []any{m.options.Database.Name}, &now); err != nil {
		return s, err
	}
	return adminapi.Schemas{Database: now.Version, Image: image}, nil
}

// Convert implements adminapi.Database. The new schema is one entry of the cluster's log, so that all members change at the same
// entry (ovsdb-server(7), section 4.1.24: convert).
func (m *member) Convert(ctx context.Context) error {
	schema, _, err := m.ownSchema()
	if err != nil {
		return err
	}
	return m.ask(ctx, "convert", []any{m.options.Database.Name, schema}, nil)
}

// ownSchema returns the image's schema and its version. It makes ephemeral columns persistent, as ovsdb-client(1) convert does,
// because clustered databases do not support ephemeral columns.
func (m *member) ownSchema() (schema map[string]any, version string, err error) {
	text, err := os.ReadFile(m.options.Database.Schema)
	if err != nil {
		return nil, "", fmt.Errorf("read the schema: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&schema); err != nil {
		return nil, "", fmt.Errorf("decode the schema %s: %w", m.options.Database.Schema, err)
	}
	version, _ = schema["version"].(string)
	for _, table := range objects(schema["tables"]) {
		for _, column := range objects(objects(table)["columns"]) {
			delete(objects(column), "ephemeral")
		}
	}
	return schema, version, nil
}

// objects returns the members of a JSON object, or nil for any other value.
func objects(v any) map[string]any {
	o, _ := v.(map[string]any)
	return o
}

func (m *member) ask(ctx context.Context, method string, params []any, result any) error {
	conn, err := jsonrpc.Dial(ctx, m.options.socket())
	if err != nil {
		return err
	}
	defer conn.Close()
	// When a schema changes, the server disconnects clients that did not send set_db_change_aware, before it responds
	// (ovsdb-server(7)).
	if err := conn.Call("set_db_change_aware", []any{true}, nil); err != nil {
		return fmt.Errorf("%s of %s: %w", method, m.options.Database.Name, err)
	}
	if err := conn.Call(method, params, result); err != nil {
		return fmt.Errorf("%s of %s: %w", method, m.options.Database.Name, err)
	}
	return nil
}
