// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cniserver_test

import (
	"testing"

	"github.com/kiln-net/kiln/agent/agenttest"
)

func TestMain(m *testing.M) { agenttest.Main(m) }
