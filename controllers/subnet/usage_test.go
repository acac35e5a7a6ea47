// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package subnet

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestChangesOfUseAreGathered(t *testing.T) {
	burst := func(from, to time.Duration) []time.Duration {
		var at []time.Duration
		for ; from < to; from += 50 * time.Millisecond {
			at = append(at, from)
		}
		return at
	}
	const s = time.Second
	for _, tt := range []struct {
		name    string
		changes []time.Duration // since the start
		want    []time.Duration // times of the reports
	}{
		{"one change", []time.Duration{0}, []time.Duration{s}},
		{"a burst", burst(0, 6*s), []time.Duration{s, 6*s + 950*time.Millisecond}},
		{"a long burst", burst(0, 25*s), []time.Duration{s, 11 * s, 21 * s, 25*s + 950*time.Millisecond}},
		{"changes far apart", []time.Duration{0, 60 * s, 120 * s}, []time.Duration{s, 61 * s, 121 * s}},
		{"changes at intervals", []time.Duration{0, 4 * s, 8 * s}, []time.Duration{s, 5 * s, 9 * s}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				var got []time.Duration
				g := &usageReports{report: func(string) { got = append(got, time.Since(begin)) }, delay: usageDelay, uses: map[string]*use{}}
				for _, at := range tt.changes {
					time.Sleep(time.Until(begin.Add(at)))
					g.changed("a")
				}
				time.Sleep(time.Minute)
				synctest.Wait() // synchronize with the timers' goroutines for the race detector
				if !slices.Equal(got, tt.want) {
					t.Errorf("reported at %v, want %v", got, tt.want)
				}
				if len(g.uses) != 0 {
					t.Errorf("%d subnets are remembered that have not changed for a minute", len(g.uses))
				}
			})
		})
	}
}
