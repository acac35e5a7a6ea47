// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"reflect"

	"github.com/ovn-kubernetes/libovsdb/model"
)

// rowDecoder decodes the rows of a table into models.
type rowDecoder struct {
	model   reflect.Type
	columns map[string]int // fields of the model
	shared  map[string]bool
}

// newRow is an inserted row: its model, and the values of its Shared columns.
type newRow struct {
	model  model.Model
	shared map[string][]string
}

func newRowDecoders(m model.DatabaseModel) map[string]*rowDecoder {
	decoders := map[string]*rowDecoder{}
	for table, pointer := range m.Types() {
		d := &rowDecoder{model: pointer.Elem(), columns: map[string]int{}, shared: map[string]bool{}}
		for i := range d.model.NumField() {
			d.columns[d.model.Field(i).Tag.Get("ovsdb")] = i
		}
		for _, column := range Shared[table] {
			d.shared[column] = true
		}
		decoders[table] = d
	}
	return decoders
}

// decode reads the columns of an inserted row. It skips columns that the model does not have.
func (d *rowDecoder) decode(uuid string, columns []byte) (newRow, error) {
	value := reflect.New(d.model)
	value.Elem().Field(d.columns["_uuid"]).SetString(uuid)
	row := newRow{model: value.Interface()}
	r := &reader{in: columns}
	r.object(func(column []byte) {
		field, known := d.columns[string(column)]
		switch {
		case d.shared[string(column)]:
			if row.shared == nil {
				row.shared = map[string][]string{}
			}
			row.shared[string(column)] = r.texts()
		case known && string(column) != "_uuid":
			r.field(value.Elem().Field(field).Addr().Interface())
		default:
			r.value()
		}
	})
	if r.err != nil {
		return newRow{}, fmt.Errorf("decode: %w", r.err)
	}
	return row, nil
}

// field reads a column into a model's field, whose type is one that libovsdb uses for columns (ovsdb.NativeType). An empty
// value becomes nil.
func (r *reader) field(to any) {
	switch to := to.(type) {
	case *string:
		*to = r.text()
	case *int:
		*to = r.integer()
	case *bool:
		*to = r.boolean()
	case **string:
		*to = optional(r, r.text)
	case **int:
		*to = optional(r, r.integer)
	case **bool:
		*to = optional(r, r.boolean)
	case *[]string:
		*to = r.texts()
	case *map[string]string:
		*to = mapping(r, r.text)
	case *map[string]int:
		*to = mapping(r, r.integer)
	default:
		r.fail(fmt.Sprintf("no column of type %T", to))
	}
}

func (r *reader) texts() []string {
	var all []string
	r.set(func() { all = append(all, r.text()) })
	return all
}

func optional[T any](r *reader, atom func() T) *T {
	var all []T
	r.set(func() { all = append(all, atom()) })
	switch len(all) {
	case 0:
		return nil
	case 1:
		return &all[0]
	}
	r.fail("one value at most")
	return nil
}

func mapping[T any](r *reader, atom func() T) map[string]T {
	var all map[string]T
	r.pairs(func() {
		key := r.text()
		r.expect(',')
		if all == nil {
			all = map[string]T{}
		}
		all[key] = atom()
	})
	return all
}
