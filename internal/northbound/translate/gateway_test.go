// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import (
	"testing"
)

func TestGateway(t *testing.T) { rowsOf(t, "gateway-", Gateway) }
