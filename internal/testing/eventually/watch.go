// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package eventually

import (
	"slices"
	"strings"
	"sync"
	"testing"
)

var (
	watchedMu sync.Mutex
	// watched are the checks of Watch, by the name of their test without the names of subtests.
	watched = map[string][]func() error{}
)

// Watch makes all waits of a test and of its subtests fail at once when ended returns an error, until the test ends. A wait calls
// ended after each check that did not hold.
func Watch(t testing.TB, ended func() error) {
	t.Helper()
	test := rootOf(t)
	watchedMu.Lock()
	defer watchedMu.Unlock()
	watched[test] = append(watched[test], ended)
	i := len(watched[test]) - 1
	t.Cleanup(func() {
		watchedMu.Lock()
		defer watchedMu.Unlock()
		watched[test][i] = func() error { return nil }
	})
}

func ended(t testing.TB) error {
	watchedMu.Lock()
	checks := slices.Clone(watched[rootOf(t)])
	watchedMu.Unlock()
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func rootOf(t testing.TB) string {
	test, _, _ := strings.Cut(t.Name(), "/")
	return test
}
