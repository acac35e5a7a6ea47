// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"slices"
	"testing"

	"github.com/go-logr/logr/funcr"
)

func TestLazyValuesAreLoggedLikeOthers(t *testing.T) {
	log := func(lazy bool) (lines []string) {
		logger := funcr.New(func(prefix, args string) { lines = append(lines, prefix+" "+args) }, funcr.Options{})
		if lazy {
			logger = logger.WithSink(lazySink{LogSink: logger.GetSink()})
		}
		base := logger.WithName("a").WithValues("one", 1)
		first, second := base.WithValues("two", 2), base.WithValues("three", 3).WithName("b").WithCallDepth(1)
		first.Info("hello", "four", 4)
		second.Error(errors.New("broken"), "oh")
		base.V(1).Info("too much")
		return lines
	}
	if got, want := log(true), log(false); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
