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
		changes, want []time.Duration
	}{
		{"one change", []time.Duration{0}, []time.Duration{s}},
		{"1,000 changes in a second", every(time.Millisecond, s), []time.Duration{s}},
		{"changes that never end", every(1100*time.Millisecond, 25*s), []time.Duration{s, 11 * s, 21 * s, 31 * s}},
		{"a change just after a request", []time.Duration{0, 1100 * time.Millisecond}, []time.Duration{s, 11 * s}},
		{"changes far apart", []time.Duration{0, 60 * s}, []time.Duration{s, 61 * s}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := &times{begin: time.Now(), added: map[string][]time.Duration{}}
				p := &Paced{Delay: s, Every: 10 * s}
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
