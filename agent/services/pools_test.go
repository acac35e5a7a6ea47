// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/internal/testing/golden"
)

// TestElements compares the elements of each Service in testdata/*.in.yaml on a node named `here`, and checks that nftables accepts them.
func TestElements(t *testing.T) {
	nft, err := knftables.New(knftables.InetFamily, Table)
	if err != nil {
		t.Fatal(err)
	}
	type input struct {
		Service *corev1.Service
		Slices  []*discoveryv1.EndpointSlice
		Nodes   map[string][]netip.Addr
	}
	golden.Each(t, "testdata/*.in.yaml", func(t *testing.T, in input, out string) {
		pools := poolsOf(in.Service, in.Slices, "here", nil, func(node string) []netip.Addr { return in.Nodes[node] })
		var lines []string
		for i := range pools {
			pools[i].elements(func(e element, value string) {
				lines = append(lines, strings.TrimSuffix(fmt.Sprintf("%s %s : %s", e.object, e.key, value), " : "))
			})
		}
		slices.Sort(lines)
		golden.Compare(t, out, []byte(strings.Join(append(lines, ""), "\n")))
		w := newWriter(nft)
		if err := w.rewrite(t.Context(), nil, []change{{service: types.NamespacedName{Name: "s"}, pools: pools}}, nil); err != nil {
			t.Fatal(err)
		}
		agrees(t, w)
	})
}
