// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package egressaddress

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A controller whose clock is behind moves an address to another node.
func TestATimeIsAlwaysLater(t *testing.T) {
	start := time.Now().Truncate(time.Second)
	for name, before := range map[string]*metav1.Time{
		"the first one": nil, "after a while": new(metav1.NewTime(start.Add(-time.Hour))), "in the same second": new(metav1.NewTime(start)),
		"a clock that is an hour behind": new(metav1.NewTime(start.Add(time.Hour))),
	} {
		got := later(before)
		if got.Nanosecond() != 0 || got.Time.Before(start) || before != nil && !got.After(before.Time) {
			t.Errorf("%s: %v after %v", name, got, before)
		}
	}
}
