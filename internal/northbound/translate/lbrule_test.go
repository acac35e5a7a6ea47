// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import "testing"

func TestLBRule(t *testing.T) { rowsOf(t, "lbrule-", LBRule) }
