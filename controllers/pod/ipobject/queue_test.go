// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipobject

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kiln-net/kiln/controllers/controllertest"
)

func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// paced runs a test of a writeQueue with a synthetic clock. out returns the requests since its last call.
func paced(t *testing.T, pace Pace, test func(t *testing.T, b *writeQueue, out func() []string)) {
	synctest.Test(t, func(t *testing.T) {
		b := &writeQueue{pace: pace}
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[ctrl.Request]())
		defer q.ShutDown()
		if err := b.Start(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		test(t, b, func() []string {
			synctest.Wait()
			return controllertest.Drain(q)
		})
	})
}

func TestIPObjectsWaitUntilNoPodCame(t *testing.T) {
	paced(t, Pace{Quiet: time.Second, AtMost: time.Hour}, func(t *testing.T, b *writeQueue, out func() []string) {
		b.PodCame()
		b.put("a")
		b.put("a")
		b.put("b")
		time.Sleep(900 * time.Millisecond)
		b.PodCame()
		time.Sleep(900 * time.Millisecond)
		expect(t, "while pods come", out())
		time.Sleep(200 * time.Millisecond)
		expect(t, "a second after the last pod", out(), "a", "b")
		b.put("c")
		expect(t, "when no pod came", out(), "c")
	})
}

func TestOnlySomeIPObjectsAreWrittenAtATime(t *testing.T) {
	paced(t, Pace{}, func(t *testing.T, b *writeQueue, out func() []string) {
		for i := range ipWriters + 2 {
			b.put(fmt.Sprintf("p%d", i))
		}
		expect(t, "at first", out(), "p0", "p1", "p2", "p3")
		b.done("stranger")
		expect(t, "after the pass for another's object", out())
		b.done("p2")
		b.done("p2")
		expect(t, "after one is written", out(), "p4")
	})
}

func TestPodsThatGoOnComingDoNotStarveIPObjects(t *testing.T) {
	paced(t, Pace{Quiet: time.Second, AtMost: 10 * time.Second}, func(t *testing.T, b *writeQueue, out func() []string) {
		ctx := t.Context()
		go func() {
			for tick := time.NewTicker(100 * time.Millisecond); ; {
				select {
				case <-tick.C:
					b.PodCame()
				case <-ctx.Done():
					return
				}
			}
		}()
		b.PodCame()
		for i := range 5 {
			b.put(fmt.Sprintf("p%d", i))
		}
		time.Sleep(9950 * time.Millisecond)
		expect(t, "before the limit", out())
		time.Sleep(100 * time.Millisecond)
		expect(t, "at the limit, one writer", out(), "p0")
		b.done("p0")
		expect(t, "when it is done", out(), "p1")
		time.Sleep(10 * time.Second)
		b.done("p1")
		expect(t, "when the oldest has waited twice as long", out(), "p2", "p3")
	})
}

func TestAReleasedPodLeavesNothingInTheBacklog(t *testing.T) {
	paced(t, Pace{Quiet: time.Second, AtMost: time.Minute}, func(t *testing.T, b *writeQueue, out func() []string) {
		b.PodCame()
		b.put("a")
		b.put("b")
		b.Drop("a")
		b.Drop("never-held")
		time.Sleep(time.Minute)
		expect(t, "released", out(), "b")
		b.done("b")
		if len(b.queued)+len(b.writing)+b.order.Len() != 0 {
			t.Errorf("left behind: %v %v %d", b.queued, b.writing, b.order.Len())
		}
	})
}
