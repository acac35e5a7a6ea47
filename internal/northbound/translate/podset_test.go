// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"testing"

	"github.com/kiln-net/kiln/internal/northbound/desired"
)

func TestPodSet(t *testing.T) { golden(t, "podset-", PodSet) }

func TestIsolation(t *testing.T) {
	golden(t, "isolation-", func(in struct{ Nodes []PolicyNode }) []desired.Row { return Isolation(in.Nodes) })
}
