// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/knftables"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// TestElements compares what a node named `here` has of each Service in testdata/*.in.yaml, and that nftables takes it.
func TestElements(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no inputs: %v", err)
	}
	nft, err := knftables.New(knftables.InetFamily, Table)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range inputs {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".in.yaml"), func(t *testing.T) {
			var in struct {
				Service *corev1.Service
				Slices  []*discoveryv1.EndpointSlice
				Nodes   map[string][]netip.Addr
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.UnmarshalStrict(text, &in); err != nil {
				t.Fatal(err)
			}
			pools := poolsOf(in.Service, in.Slices, "here", nil, func(node string) []netip.Addr { return in.Nodes[node] })
			var lines []string
			for i := range pools {
				pools[i].elements(func(e element, value string) {
					lines = append(lines, strings.TrimSuffix(fmt.Sprintf("%s %s : %s", e.object, e.key, value), " : "))
				})
			}
			slices.Sort(lines)
			got := strings.Join(append(lines, ""), "\n")
			golden := strings.TrimSuffix(path, ".in.yaml") + ".out"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("%v (write it with: go test ./agent/services -update)", err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("%s differs (-want +got):\n%s", golden, diff)
			}
			w := newWriter(nft)
			if err := w.rewrite(t.Context(), nil, []change{{service: types.NamespacedName{Name: "s"}, pools: pools}}); err != nil {
				t.Fatal(err)
			}
			agrees(t, w)
		})
	}
}
