// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"

	"github.com/kiln-net/kiln/internal/golden"
)

func TestMain(m *testing.M) { golden.Main(m) }
