// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// TestPagesHaveTheNumberOfKinds compares what pages say about the kinds of Kube-OVN with the definitions.
func TestPagesHaveTheNumberOfKinds(t *testing.T) {
	all, none := len(columns(t)), len(kubeovnv1.UnimplementedKinds)
	for page, texts := range map[string][]string{
		"README.md":                       {fmt.Sprintf("%d of its %d kinds work", all-none, all), fmt.Sprintf("%d kinds have [no controller yet]", none)},
		"docs/architecture.md":            {fmt.Sprintf("%d of its %d kinds work", all-none, all), fmt.Sprintf("%d kinds have [no controller yet]", none)},
		"docs/reference/compatibility.md": {fmt.Sprintf("%d of the %d kinds", none, all)},
	} {
		text, err := os.ReadFile(filepath.Join("..", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range texts {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s does not say %q", page, want)
			}
		}
	}
}
