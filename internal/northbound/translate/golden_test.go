// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"flag"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/kiln-net/kiln/internal/northbound/desired"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// hardwareAddr is a MAC address as text.
type hardwareAddr struct{ net.HardwareAddr }

func (h *hardwareAddr) UnmarshalText(b []byte) (err error) {
	h.HardwareAddr, err = net.ParseMAC(string(b))
	return err
}

// goldenRow is how a row reads in a golden file.
type goldenRow struct {
	Key        string              `json:"key"`
	Model      string              `json:"model"`
	Columns    map[string]any      `json:"columns"`
	Parent     string              `json:"parent,omitempty"`
	References map[string][]string `json:"references,omitempty"`
	Members    []string            `json:"members,omitempty"`
	Elements   []string            `json:"elements,omitempty"`
}

// golden runs f on each testdata/<prefix>*.in.yaml and compares the rows with the .out.yaml beside it.
func golden[T any](t *testing.T, prefix string, f func(T) []desired.Row) {
	t.Helper()
	inputs, err := filepath.Glob(filepath.Join("testdata", prefix+"*.in.yaml"))
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no inputs for %s: %v", prefix, err)
	}
	for _, path := range inputs {
		name := strings.TrimSuffix(filepath.Base(path), ".in.yaml")
		t.Run(name, func(t *testing.T) {
			var in T
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.UnmarshalStrict(data, &in); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			compare(t, strings.TrimSuffix(path, ".in.yaml")+".out.yaml", f(in))
		})
	}
}

func compare(t *testing.T, path string, rows []desired.Row) {
	t.Helper()
	keys := map[string]bool{}
	out := make([]goldenRow, 0, len(rows))
	for _, r := range rows {
		if keys[r.Key] {
			t.Errorf("key %s appears twice", r.Key)
		}
		keys[r.Key] = true
		out = append(out, goldenOf(r))
	}
	got, err := yaml.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (write it with: go test ./internal/northbound/translate -update)", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got):\n%s", path, diff)
	}
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
			g.References[ref.Column] = append(g.References[ref.Column], refString(to))
		}
	}
	for _, m := range r.Members {
		g.Members = append(g.Members, setString(m))
	}
	for _, e := range r.Elements {
		g.Elements = append(g.Elements, setString(e.Of)+" "+e.Value)
	}
	return g
}

func refString(r desired.Ref) string { return r.Owner.String() + " " + r.Key }

func setString(s desired.Set) string { return s.Table + "." + s.Column + " of " + refString(s.Row) }
