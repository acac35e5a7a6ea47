// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"
)

func TestUpdatesAreRead(t *testing.T) {
	got, err := readUpdates([]byte(`{ "T" : {"a":{"initial":{"x":[1,{"y":"}"}]}}, "b":{"insert":{}},"c":{"modify":{"n":-1.5e3}} , "d":{"delete":null}},"U":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := tableUpdates{
		"T": {"a": {insert: []byte(`{"x":[1,{"y":"}"}]}`)}, "b": {insert: []byte(`{}`)}, "c": {modify: []byte(`{"n":-1.5e3}`)}, "d": {}},
		"U": {},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, in := range []string{``, `[]`, `{"T"`, `{"T":{"a":{"initial"`, `{"T":{"a":{"initial":{"x":"`, `{"T":{"a":{"initial":"\`, `{"T":{"a":{"initial":`, `{"T" {}}`} {
		if _, err := readUpdates([]byte(in)); err == nil {
			t.Errorf("%q was read without an error", in)
		}
	}
}

// FuzzReadUpdates checks that readUpdates never panics. Valid JSON that it accepts has the same rows and columns for
// encoding/json.
func FuzzReadUpdates(f *testing.F) {
	f.Add([]byte(`{ "T" : {"a":{"initial":{"x":[1,{"y":"}"}]}}, "b":{"insert":{}},"c":{"modify":{"n":-1.5e3}} , "d":{"delete":null}},"U":{}}`))
	f.Add([]byte(`{"T":{"a":{"initial":{"x":"\u0000\\"}},"a":{"modify":null}}}`))
	f.Add([]byte(`{"T":{"a":null},"U":null}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := readUpdates(in)
		for _, rows := range got {
			for _, update := range rows {
				_, _ = update.columns()
			}
		}
		var want map[string]map[string]map[string]json.RawMessage
		if err != nil || json.Unmarshal(in, &want) != nil || bytes.Contains(in, []byte(`\`)) {
			return // ovsdb-server does not escape table names
		}
		if len(got) != len(want) {
			t.Errorf("tables %v, want %v", got, want)
		}
		for table, rows := range want {
			if len(got[table]) != len(rows) {
				t.Errorf("rows %v of table %s, want %v", got[table], table, rows)
			}
			for uuid, update := range rows {
				if modify := got[table][uuid].modify; !bytes.Equal(bytes.TrimSpace(modify), update["modify"]) {
					t.Errorf("columns %s of row %s, want %s", modify, uuid, update["modify"])
				}
			}
		}
	})
}
