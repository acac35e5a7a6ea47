// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"testing"
)

func TestPodSet(t *testing.T) { rowsOf(t, "podset-", PodSet) }

func TestIsolation(t *testing.T) { rowsOf(t, "isolation-", Isolation) }
