// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import "testing"

func TestSwitchLBRule(t *testing.T) { golden(t, "lbrule-", SwitchLBRule) }
