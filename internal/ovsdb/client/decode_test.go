// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/kiln-net/kiln/internal/ovsdb/nb"
	"github.com/kiln-net/kiln/internal/testing/seed"
)

func northboundModel(t testing.TB) model.DatabaseModel {
	t.Helper()
	clientModel, err := nb.FullDatabaseModel()
	if err != nil {
		t.Fatal(err)
	}
	m, problems := model.NewDatabaseModel(nb.Schema(), clientModel)
	if len(problems) > 0 {
		t.Fatal(errors.Join(problems...))
	}
	return m
}

// byLibrary decodes a row with libovsdb.
func byLibrary(m model.DatabaseModel, table, uuid string, in []byte) (newRow, error) {
	all, err := rowUpdate{insert: in}.columns()
	if err != nil {
		return newRow{}, err
	}
	row := newRow{shared: map[string][]string{}}
	for _, column := range Shared[table] {
		if row.shared[column], err = all.strings(column); err != nil {
			return newRow{}, err
		}
	}
	rest := all.rest(table)
	row.model, err = model.CreateModel(m, table, &rest, uuid)
	return row, err
}

// difference returns the column in which two rows differ; nil equals empty.
func difference(a, b newRow, table string) string {
	for _, column := range Shared[table] {
		if !slices.Equal(a.shared[column], b.shared[column]) {
			return fmt.Sprintf("%s: %q and %q", column, a.shared[column], b.shared[column])
		}
	}
	x, y := reflect.ValueOf(a.model).Elem(), reflect.ValueOf(b.model).Elem()
	for i := range x.NumField() {
		f, g := x.Field(i), y.Field(i)
		collection := f.Kind() == reflect.Slice || f.Kind() == reflect.Map
		if collection && f.Len() == 0 && g.Len() == 0 || reflect.DeepEqual(f.Interface(), g.Interface()) {
			continue
		}
		return fmt.Sprintf("%s: %v and %v", x.Type().Field(i).Name, f, g)
	}
	return ""
}

const someUUID = "9b5fe0cb-8a21-4b4c-9a3b-7e1d1c1f0001"

func TestRowsAreDecodedAsLibovsdbDoes(t *testing.T) {
	m := northboundModel(t)
	decoders := newRowDecoders(m)
	for _, table := range slices.Sorted(maps.Keys(m.Types())) {
		t.Run(table, func(t *testing.T) {
			random := seed.Rand(seed.New(t), 1)
			for range 50 {
				in := randomRow(t, random, m, table)
				want, err := byLibrary(m, table, someUUID, in)
				if err != nil {
					t.Fatalf("libovsdb: %v\n%s", err, in)
				}
				got, err := decoders[table].decode(someUUID, in)
				if err != nil {
					t.Fatalf("%v\n%s", err, in)
				}
				if d := difference(got, want, table); d != "" {
					t.Fatalf("%s, decoded by libovsdb, of\n%s", d, in)
				}
			}
		})
	}
}

// randomRow returns a row in the form of a server's message. Columns are missing at random.
func randomRow(t *testing.T, random *rand.Rand, m model.DatabaseModel, table string) []byte {
	t.Helper()
	row := ovsdb.Row{"of_a_newer_schema": []any{"map", []any{}}}
	for name, column := range m.Schema.Table(table).Columns {
		if random.IntN(5) == 0 {
			continue
		}
		value, err := ovsdb.NativeToOvs(column, randomValue(random, ovsdb.NativeType(column)).Interface())
		if err != nil {
			t.Fatal(err)
		}
		row[name] = value
	}
	in, err := json.MarshalIndent(row, "", []string{"", " "}[random.IntN(2)])
	if err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(in, []byte(`"named-uuid"`), []byte(`"uuid"`)) // text with "named-uuid" changes, too, which is harmless
}

func randomValue(random *rand.Rand, of reflect.Type) reflect.Value {
	value := reflect.New(of).Elem()
	switch of.Kind() {
	case reflect.String:
		texts := []string{"", "a", "dynamic", someUUID, `"quoted" \ and / < &`, "tab\tnewline\n\u0001", "façade 🦊", "[\"set\"]"}
		value.SetString(texts[random.IntN(len(texts))])
	case reflect.Int:
		value.SetInt(random.Int64N(1<<33) - 1<<16)
	case reflect.Bool:
		value.SetBool(random.IntN(2) == 0)
	case reflect.Pointer:
		if random.IntN(2) == 0 {
			value.Set(reflect.New(of.Elem()))
			value.Elem().Set(randomValue(random, of.Elem()))
		}
	case reflect.Slice:
		for range random.IntN(4) {
			value.Set(reflect.Append(value, randomValue(random, of.Elem())))
		}
	case reflect.Map:
		value.Set(reflect.MakeMap(of))
		for range random.IntN(12) {
			value.SetMapIndex(randomValue(random, of.Key()), randomValue(random, of.Elem()))
		}
	}
	return value
}

// FuzzDecode checks that decode never panics, and that it decodes rows that libovsdb can decode in the same way.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"name":"p","up":true,"tag":["set",[]],"type":"","addresses":["set",["a","b\u00e9"]],"external_ids":["map",[["k","v"]]]}`))
	f.Add([]byte(`{"ha_chassis_group":["uuid","` + someUUID + `"],"tag": 4 , "options":["map",[]],"port_security":"alone"}`))
	f.Add([]byte(`{"tag":[1,2],"name":["uuid"],"up":nul}`))
	m := northboundModel(f)
	decoder := newRowDecoders(m)[nb.LogicalSwitchPortTable]
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := decoder.decode(someUUID, in)
		if err != nil || !json.Valid(in) {
			return
		}
		want, err := byLibrary(m, nb.LogicalSwitchPortTable, someUUID, in)
		if err != nil {
			return // libovsdb rejects more
		}
		if d := difference(got, want, nb.LogicalSwitchPortTable); d != "" {
			t.Errorf("%s, decoded by libovsdb, of\n%s", d, in)
		}
	})
}
