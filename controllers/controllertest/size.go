// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package controllertest

import "os"

// Size returns the number of objects for a test of costs. It is small in a plain `go test`, where a ratio of three shows whether the work grows
// with the cluster, and full in `make test-long`, which sets KILN_TEST_FULL.
func Size(small, full int) int {
	if os.Getenv("KILN_TEST_FULL") != "" {
		return full
	}
	return small
}
