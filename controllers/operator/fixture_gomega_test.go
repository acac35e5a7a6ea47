// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"

	"github.com/kiln-net/kiln/internal/testing/eventually"
)

// recordingG is Gomega's WithT that records how long its waits take.
type recordingG struct {
	*WithT
	t testing.TB
}

func newG(t testing.TB) recordingG { return recordingG{NewWithT(t), t} }

// Eventually is WithT.Eventually. Each method that ends the wait in this package records its duration.
func (g recordingG) Eventually(actual any, intervals ...any) assertion {
	return assertion{g.WithT.Eventually(actual, intervals...), g.t}
}

type assertion struct {
	AsyncAssertion
	t testing.TB
}

// WithTimeout is AsyncAssertion.WithTimeout.
func (w assertion) WithTimeout(limit time.Duration) assertion {
	return assertion{w.AsyncAssertion.WithTimeout(limit), w.t}
}

// WithPolling is AsyncAssertion.WithPolling.
func (w assertion) WithPolling(interval time.Duration) assertion {
	return assertion{w.AsyncAssertion.WithPolling(interval), w.t}
}

// Should is AsyncAssertion.Should.
func (w assertion) Should(matcher types.GomegaMatcher, description ...any) bool {
	w.t.Helper()
	defer eventually.Record(w.t, time.Now())
	return w.AsyncAssertion.Should(matcher, description...)
}

// ShouldNot is AsyncAssertion.ShouldNot.
func (w assertion) ShouldNot(matcher types.GomegaMatcher, description ...any) bool {
	w.t.Helper()
	defer eventually.Record(w.t, time.Now())
	return w.AsyncAssertion.ShouldNot(matcher, description...)
}
