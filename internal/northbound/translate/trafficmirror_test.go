// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package translate

import "testing"

func TestTrafficMirror(t *testing.T) { rowsOf(t, "trafficmirror-", TrafficMirror) }
