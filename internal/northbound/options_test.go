// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/internal/northbound/nbtest"
)

func TestLeadersSetOptionsThatNobodyHasSet(t *testing.T) {
	for name, test := range map[string]struct{ there, want map[string]string }{
		"in a new database":             {want: map[string]string{"northd-backoff-interval-ms": "300"}},
		"next to other owners' options": {there: map[string]string{"a": "b"}, want: map[string]string{"a": "b", "northd-backoff-interval-ms": "300"}},
		"but not over a value of some":  {there: map[string]string{"northd-backoff-interval-ms": "0"}, want: map[string]string{"northd-backoff-interval-ms": "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := nbtest.Start(t)
			if test.there != nil {
				server.Transact(nbtest.Op{"op": "insert", "table": "NB_Global", "row": map[string]any{"options": nbtest.Map(test.there)}})
			}
			lead(t, server.Endpoint()).stop()
			for range 2 { // the next leader does not change them
				for _, row := range server.Rows("NB_Global") {
					if diff := cmp.Diff(test.want, row["options"]); diff != "" {
						t.Errorf("options (-want +got):\n%s", diff)
					}
				}
				lead(t, server.Endpoint()).stop()
			}
		})
	}
}
