// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"net"
	"reflect"
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/testing/golden"
)

// hardwareAddr is a MAC address as text.
type hardwareAddr struct{ net.HardwareAddr }

func (h *hardwareAddr) UnmarshalText(b []byte) (err error) {
	h.HardwareAddr, err = net.ParseMAC(string(b))
	return err
}

// goldenRow is the form of a row in a golden file.
type goldenRow struct {
	Key        string              `json:"key"`
	Model      string              `json:"model"`
	Columns    map[string]any      `json:"columns"`
	Parent     string              `json:"parent,omitempty"`
	References map[string][]string `json:"references,omitempty"`
	Members    []string            `json:"members,omitempty"`
	Elements   []string            `json:"elements,omitempty"`
	Values     []string            `json:"values,omitempty"`
}

// rowsOf runs f on each testdata/<prefix>*.in.yaml and compares the rows with the corresponding .out.yaml.
func rowsOf[T any](t *testing.T, prefix string, f func(T) []desired.Row) {
	t.Helper()
	golden.Each(t, "testdata/"+prefix+"*.in.yaml", func(t *testing.T, in T, out string) {
		keys := map[string]bool{}
		rows := []goldenRow{}
		for _, r := range f(in) {
			if keys[r.Key] {
				t.Errorf("key %s appears twice", r.Key)
			}
			keys[r.Key] = true
			rows = append(rows, goldenOf(r))
		}
		golden.YAML(t, out+".yaml", rows)
	})
}

func goldenOf(r desired.Row) goldenRow {
	model := reflect.ValueOf(r.Model).Elem()
	g := goldenRow{Key: r.Key, Model: model.Type().Name(), Columns: map[string]any{}}
	for i := range model.NumField() {
		if v := model.Field(i); !v.IsZero() {
			g.Columns[model.Type().Field(i).Tag.Get("ovsdb")] = v.Interface()
		}
	}
	if r.Parent != nil {
		g.Parent = setString(*r.Parent)
	}
	for _, ref := range r.References {
		if g.References == nil {
			g.References = map[string][]string{}
		}
		for _, to := range ref.To {
			text := refString(to)
			if ref.Optional {
				text += " (optional)"
			}
			g.References[ref.Column] = append(g.References[ref.Column], text)
		}
	}
	for _, m := range r.Members {
		g.Members = append(g.Members, setString(m))
	}
	for _, e := range r.Elements {
		g.Elements = append(g.Elements, setString(e.Of)+" "+e.Value)
	}
	g.Values = r.Values
	return g
}

func refString(r desired.Ref) string { return r.Owner.String() + " " + r.Key }

func setString(s desired.Set) string { return s.Table + "." + s.Column + " of " + refString(s.Row) }
