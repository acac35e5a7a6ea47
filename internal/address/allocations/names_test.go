// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package allocations

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestStatefulSetOf(t *testing.T) {
	for name, want := range map[string]struct {
		set     string
		ordinal int
	}{
		"db-0":      {"db", 0},
		"db-eu-12":  {"db-eu", 12},
		"db-01":     {"", -1}, // no StatefulSet creates leading zeros
		"db--1":     {"db-", 1},
		"db-":       {"", -1},
		"-1":        {"", -1},
		"web-x7f9k": {"", -1},
	} {
		set, ordinal := StatefulSetOf(types.NamespacedName{Namespace: "shop", Name: name})
		if set.Name != want.set || ordinal != want.ordinal {
			t.Errorf("%s: %v %d, want %v", name, set, ordinal, want)
		}
	}
}
