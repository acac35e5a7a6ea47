// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import "testing"

func TestVip(t *testing.T) { rowsOf(t, "vip-", Vip) }
