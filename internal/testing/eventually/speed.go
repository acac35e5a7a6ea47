// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package eventually

import (
	"os"
	"slices"
	"sync"
	"time"
)

// The duration of the parts of one sample on the reference: a virtual machine with 2 idle cores and a disk with a write cache.
const (
	referenceCPU  = 20 * time.Millisecond
	referenceDisk = 8 * time.Millisecond
)

// samplePause is the pause of Main. A sample takes 20 ms or more, so that sampling takes less than a hundredth of a CPU in each of the packages that are tested at
// the same time.
const samplePause = 5 * time.Second

// sample is how many times slower than the reference the machine was at a time; at least 1.
type sample struct {
	at     time.Time
	factor float64
}

// Sampling measures the speed of the machine repeatedly until it is stopped.
type Sampling struct {
	// before and after are the factors measured before and after the tests.
	before, after float64

	mu      sync.Mutex
	pause   time.Duration
	samples []sample
	tick    *time.Ticker
	quit    chan struct{}
	over    sync.WaitGroup
}

// StartSampling measures the machine once before it returns, and then in the background after each pause.
func StartSampling(pause time.Duration) *Sampling {
	s := &Sampling{before: median(), after: 1, pause: pause, tick: time.NewTicker(pause), quit: make(chan struct{})}
	s.over.Go(func() {
		defer s.tick.Stop()
		for {
			select {
			case <-s.quit:
				return
			case <-s.tick.C:
				x := measure()
				s.mu.Lock()
				s.samples = append(s.samples, x)
				s.mu.Unlock()
			}
		}
	})
	return s
}

// Stop measures the machine once more.
func (s *Sampling) Stop() {
	close(s.quit)
	s.over.Wait()
	s.after = median()
}

// SetPause changes the pause between two samples.
func (s *Sampling) SetPause(pause time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pause != pause {
		s.pause = pause
		s.tick.Reset(pause)
	}
}

// Slowest returns the factor of the slowest sample between two times and within a second of them, at least 1. It is for limits of a single event, such as the
// longest gap of a flow: a stall of the machine in the wrong moment lengthens the event and hardly changes a mean.
func (s *Sampling) Slowest(from, to time.Time) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	slowest := 1.0
	for _, x := range s.samples {
		if x.at.After(from.Add(-time.Second)) && x.at.Before(to.Add(time.Second)) {
			slowest = max(slowest, x.factor)
		}
	}
	return slowest
}

// Factor returns how many times slower than the reference the machine was between two times, at least 1. It is the mean of the
// samples in this time and within one pause of it. It is not less than the factors measured before and after the tests.
func (s *Sampling) Factor(from, to time.Time) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum, n := 0.0, 0
	for _, x := range s.samples {
		if x.at.After(from.Add(-s.pause)) && x.at.Before(to.Add(s.pause)) {
			sum, n = sum+x.factor, n+1
		}
	}
	return max(s.before, s.after, sum/float64(max(n, 1)))
}

// median returns the median of some samples: a single one may coincide with a write of another process.
func median() float64 {
	factors := make([]float64, 5)
	for i := range factors {
		factors[i] = measure().factor
	}
	slices.Sort(factors)
	return factors[len(factors)/2]
}

func measure() sample {
	return sample{at: time.Now(), factor: max(1, over(work, referenceCPU), over(writePage, referenceDisk))}
}

func over(f func(), reference time.Duration) float64 {
	began := time.Now()
	f()
	return float64(time.Since(began)) / float64(reference)
}

// work uses one CPU. It is plain Go, so that the race detector slows it down like the tests.
func work() {
	const size = 1 << 18
	numbers, x := make([]uint32, size), uint32(1)
	for i := range numbers {
		x ^= x << 13
		x ^= x >> 17
		x ^= x << 5
		numbers[i] = x
	}
	slices.Sort(numbers)
}

// writePage writes and syncs a page, like etcd and ovsdb-server for each transaction. If that fails, only the CPU determines the
// factor.
func writePage() {
	f, err := os.CreateTemp("", "kiln-sample")
	if err != nil {
		return
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.Write(make([]byte, 4096)); err == nil {
		_ = f.Sync()
	}
}
