// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kiln-net/kiln/internal/k8s"
)

// times is a queue that records when requests are added.
type times struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	begin time.Time
	added map[string][]time.Duration
}

func (q *times) Add(r reconcile.Request) {
	q.added[r.Name] = append(q.added[r.Name], time.Since(q.begin))
}

func TestPacedLimitsRequests(t *testing.T) {
	const s = time.Second
	every := func(step, until time.Duration) (at []time.Duration) {
		for d := time.Duration(0); d < until; d += step {
			at = append(at, d)
		}
		return at
	}
	for _, tt := range []struct {
		name          string
		quiet         time.Duration
		changes, want []time.Duration
	}{
		{"one change", 0, []time.Duration{0}, []time.Duration{s}},
		{"1,000 changes in a second", 0, every(time.Millisecond, s), []time.Duration{s}},
		{"changes that never end", 0, every(1100*time.Millisecond, 25*s), []time.Duration{s, 11 * s, 21 * s, 31 * s}},
		{"a change just after a request", 0, []time.Duration{0, 1100 * time.Millisecond}, []time.Duration{s, 11 * s}},
		{"changes far apart", 0, []time.Duration{0, 60 * s}, []time.Duration{s, 61 * s}},
		{"one change, with quiet", s, []time.Duration{0}, []time.Duration{s}},
		{"a burst, with quiet", s, every(50*time.Millisecond, 6*s), []time.Duration{s, 6*s + 950*time.Millisecond}},
		{"a long burst, with quiet", s, every(50*time.Millisecond, 25*s), []time.Duration{s, 11 * s, 21 * s, 25*s + 950*time.Millisecond}},
		{"changes far apart, with quiet", s, []time.Duration{0, 60 * s, 120 * s}, []time.Duration{s, 61 * s, 121 * s}},
		{"changes at intervals, with quiet", s, []time.Duration{0, 4 * s, 8 * s}, []time.Duration{s, 5 * s, 9 * s}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := &times{begin: time.Now(), added: map[string][]time.Duration{}}
				p := &Paced{Delay: s, Every: 10 * s, Quiet: tt.quiet}
				if err := p.Start(t.Context(), k8s.Queue(q)); err != nil {
					t.Fatal(err)
				}
				p.Changed("other")
				for _, at := range tt.changes {
					time.Sleep(time.Until(q.begin.Add(at)))
					p.Changed("a")
				}
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				if got := q.added["a"]; !slices.Equal(got, tt.want) {
					t.Errorf("requested at %v, want %v", got, tt.want)
				}
				if len(q.added["other"]) != 1 || len(p.objects) != 0 {
					t.Errorf("requests for the other object: %v; %d objects are remembered", q.added["other"], len(p.objects))
				}
			})
		})
	}
}

func TestPacedCallsDoWithoutALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var got []time.Duration
		p := &Paced{Delay: time.Second, Every: 2 * time.Second}
		p.Do = func(name string) {
			if got = append(got, time.Since(begin)); len(got) < 3 {
				p.Changed(name) // more to do
			}
		}
		p.Changed("a")
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []time.Duration{time.Second, 3 * time.Second, 5 * time.Second}; !slices.Equal(got, want) {
			t.Errorf("called at %v, want %v", got, want)
		}
	})
}
