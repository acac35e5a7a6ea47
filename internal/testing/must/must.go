// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package must ends tests whose preparations fail.
package must

import "testing"

// Succeed ends the test if err is not nil.
func Succeed(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Value returns the value of a call that cannot fail in a correct test, for use within expressions and in goroutines. It panics on an error.
func Value[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
