// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import "testing"

func TestService(t *testing.T) { rowsOf(t, "service-", Service) }
