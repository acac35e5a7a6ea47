// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovncluster

import (
	"os"
	"testing"

	"github.com/kiln-net/kiln/internal/testing/eventually"
)

func TestMain(m *testing.M) { os.Exit(eventually.Main(m)) }
