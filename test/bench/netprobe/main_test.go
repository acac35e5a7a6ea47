// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"serve"}, {"serve", "x"}, {"serve", "1", "x"}, {"stream", "127.0.0.1:1"}, {"other", "127.0.0.1:1", "1s"}, {"rr", "127.0.0.1:1", "soon"}, {"rr", "127.0.0.1:1", "1s"}, {"features", "none"}, {"steady", "127.0.0.1:1", "1s"}, {"steady", "127.0.0.1:1", "1s", "NaN"}, {"rr", "127.0.0.1:1", "1s", "5"}} {
		if run(args) == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
