// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestALongMessageIsStoredAsItIsWritten(t *testing.T) {
	for _, message := range []string{"short", strings.Repeat("x", 2*maxMessage), strings.Repeat("x", maxMessage-1) + "äöü", "\xff at the start"} {
		got, stored := shortened(message), ""
		must.Succeed(t, json.Unmarshal(must.Value(json.Marshal(got)), &stored))
		if stored != got || len(got) > maxMessage || len(got) < min(len(message), maxMessage)-4 {
			t.Errorf("%d bytes become %d, and the API server stores %d", len(message), len(got), len(stored))
		}
	}
}
