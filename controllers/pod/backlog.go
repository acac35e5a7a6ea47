// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"container/list"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
)

// RecordPace says when IP objects are written: behind the pods, because both are requests to one API server
// (docs/decisions/2026-11-21-ip-objects-behind-the-burst.md).
type RecordPace struct {
	// Quiet is how long no pod must have come before IP objects are written at full speed.
	Quiet time.Duration
	// AtMost is how long one waits while pods go on coming. Then it is written by one writer, and by another one for each time
	// longer that the oldest has waited.
	AtMost time.Duration
}

// DefaultRecordPace lets IP objects follow a second after a burst, and ten seconds after their pods in one that goes on.
var DefaultRecordPace = RecordPace{Quiet: time.Second, AtMost: 10 * time.Second}

// recordWriters is how many IP objects are written at a time at full speed.
const recordWriters = 4

// backlog are the pods whose IP objects are to be written, the oldest first. It feeds the controller of IP objects.
type backlog struct {
	feed

	pace RecordPace

	mu      sync.Mutex
	held    map[types.NamespacedName]*list.Element
	order   list.List // of heldRecord
	writing map[types.NamespacedName]struct{}
	came    time.Time // the last pod
	timer   *time.Timer
}

type heldRecord struct {
	pod   types.NamespacedName
	since time.Time
}

// podCame says that pods are coming.
func (b *backlog) podCame() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.came = time.Now()
}

// hold asks for the IP object of a pod. It never blocks.
func (b *backlog) hold(pod types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.held[pod]; ok {
		return
	}
	if b.held == nil {
		b.held = map[types.NamespacedName]*list.Element{}
	}
	b.held[pod] = b.order.PushBack(heldRecord{pod: pod, since: time.Now()})
	heldRecords.Inc()
	if len(b.held) == 1 {
		b.release()
	}
}

// drop forgets a pod that needs no IP object any more.
func (b *backlog) drop(pod types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e, ok := b.held[pod]; ok {
		b.remove(e)
	}
}

// done says that a pass for a pod's IP object is over. It does nothing for one that the backlog did not ask for.
func (b *backlog) done(pod types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.writing[pod]; ok {
		delete(b.writing, pod)
		b.release()
	}
}

func (b *backlog) remove(e *list.Element) {
	delete(b.held, b.order.Remove(e).(heldRecord).pod)
	heldRecords.Dec()
	if len(b.held) == 0 {
		b.held = nil // a map keeps the size of the largest burst
	}
}

// release hands out what is due, and comes again when more will be.
func (b *backlog) release() {
	now := time.Now()
	for e := b.order.Front(); e != nil; e = b.order.Front() {
		oldest := e.Value.(heldRecord)
		writers := b.writers(now, oldest.since)
		if writers == 0 {
			b.comeAgain(min(b.came.Add(b.pace.Quiet).Sub(now), oldest.since.Add(b.pace.AtMost).Sub(now)))
			return
		}
		if len(b.writing) >= writers {
			return // until one is done
		}
		b.remove(e)
		if b.writing == nil {
			b.writing = map[types.NamespacedName]struct{}{}
		}
		b.writing[oldest.pod] = struct{}{}
		b.Add(ctrl.Request{NamespacedName: oldest.pod})
	}
}

// writers is how many IP objects may be written at a time when the oldest waits since then.
func (b *backlog) writers(now, since time.Time) int {
	if now.Sub(b.came) >= b.pace.Quiet {
		return recordWriters
	}
	return min(recordWriters, int(now.Sub(since)/max(b.pace.AtMost, 1)))
}

func (b *backlog) comeAgain(after time.Duration) {
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
