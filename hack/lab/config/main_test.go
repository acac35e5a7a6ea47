// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"testing"

	"github.com/kiln-net/kiln/internal/testing/golden"
)

func TestMain(m *testing.M) { golden.Main(m) }
