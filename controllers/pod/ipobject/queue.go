// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ipobject

import (
	"container/list"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kiln-net/kiln/internal/k8s"
)

// Pace is the pace at which IP objects are written. Pods have precedence, because both need requests to one API server
// (docs/decisions/2026-11-21-start.md).
type Pace struct {
	// Quiet is how long no new pod must arrive before IP objects are written at full speed.
	Quiet time.Duration
	// AtMost is how long an IP object waits while new pods keep arriving. After that, one writer starts; each further multiple of AtMost
	// that the oldest IP object has waited adds a writer.
	AtMost time.Duration
}

// DefaultPace writes IP objects one second after a burst of pods, and after ten seconds while a burst continues.
var DefaultPace = Pace{Quiet: time.Second, AtMost: 10 * time.Second}

// ipWriters is the number of concurrent writes of IP objects at full speed.
const ipWriters = 4

var queuedWrites = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "kiln_pod_records_held",
	Help: "IP objects of pods that are not written yet; they wait while many pods are created.",
})

// exportMetrics registers the metrics of this package when a process writes IP objects. Other processes of the program do not export them.
var exportMetrics = sync.OnceFunc(func() {
	metrics.Registry.MustRegister(queuedWrites)
})

// writeQueue queues the ports whose IP objects need a write, oldest first. It feeds the controller of IP objects.
type writeQueue struct {
	k8s.RequestSource

	pace Pace

	mu      sync.Mutex
	queued  map[string]*list.Element
	order   list.List // of queuedWrite
	writing map[string]struct{}
	came    time.Time // when the last new pod arrived
	timer   *time.Timer
}

type queuedWrite struct {
	port  string
	since time.Time
}

// PodCame delays queued IP objects, because a new pod has arrived.
func (b *writeQueue) PodCame() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.came = time.Now()
}

// put queues the IP object of a port for writing. It never blocks.
func (b *writeQueue) put(port string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.queued[port]; ok {
		return
	}
	if b.queued == nil {
		b.queued = map[string]*list.Element{}
	}
	b.queued[port] = b.order.PushBack(queuedWrite{port: port, since: time.Now()})
	queuedWrites.Inc()
	if len(b.queued) == 1 {
		b.release()
	}
}

// Drop removes a port that no longer needs an IP object.
func (b *writeQueue) Drop(port string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e, ok := b.queued[port]; ok {
		b.remove(e)
	}
}

// done records the end of a pass for an IP object. It does nothing if the pass did not come from the queue.
func (b *writeQueue) done(port string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.writing[port]; ok {
		delete(b.writing, port)
		b.release()
	}
}

func (b *writeQueue) remove(e *list.Element) {
	delete(b.queued, b.order.Remove(e).(queuedWrite).port)
	queuedWrites.Dec()
	if len(b.queued) == 0 {
		b.queued = nil // a map never shrinks after a burst
	}
}

// release enqueues the IP objects that are due, and sets a timer for the next ones.
func (b *writeQueue) release() {
	now := time.Now()
	for e := b.order.Front(); e != nil; e = b.order.Front() {
		oldest := e.Value.(queuedWrite)
		writers := ipWriters
		if now.Sub(b.came) < b.pace.Quiet {
			writers = min(ipWriters, int(now.Sub(oldest.since)/max(b.pace.AtMost, 1)))
		}
		if writers == 0 {
			b.comeAgain(min(b.came.Add(b.pace.Quiet).Sub(now), oldest.since.Add(b.pace.AtMost).Sub(now)))
			return
		}
		if len(b.writing) >= writers {
			return // until a write is done
		}
		b.remove(e)
		if b.writing == nil {
			b.writing = map[string]struct{}{}
		}
		b.writing[oldest.port] = struct{}{}
		b.Add(oldest.port)
	}
}

func (b *writeQueue) comeAgain(after time.Duration) {
	if b.timer != nil {
		b.timer.Reset(after)
		return
	}
	b.timer = time.AfterFunc(after, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.release()
	})
}
