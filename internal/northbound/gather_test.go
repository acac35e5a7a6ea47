// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"slices"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/testing/seed"
)

// clock is the time of a simulated engine.
type clock struct{ now time.Time }

func (c *clock) pass(d time.Duration) { c.now = c.now.Add(d) }

// simulated is an engine whose transactions take a fixed time and whose requests arrive at fixed times.
type simulated struct {
	clock
	gatherer
	arrivals []time.Time
	commit   time.Duration
	batches  []int
	waits    []time.Duration
}

func simulate(commit time.Duration, gaps ...time.Duration) *simulated {
	s := &simulated{clock: clock{now: time.Unix(1000, 0)}, commit: commit}
	at := s.now
	for _, gap := range gaps {
		at = at.Add(gap)
		s.arrivals = append(s.arrivals, at)
	}
	return s
}

// run commits all requests. As in the engine, requests join a transaction until its window ends.
func (s *simulated) run() {
	for len(s.arrivals) > 0 {
		first := s.arrivals[0]
		if first.After(s.now) {
			s.now = first
		}
		began := s.now
		for s.wait(s.now, s.waiting()) > 0 {
			next := s.now.Add(s.wait(s.now, s.waiting()))
			if n := s.queued(); n < len(s.arrivals) && s.arrivals[n].Before(next) {
				next = s.arrivals[n]
			}
			s.now = next
		}
		s.waits = append(s.waits, s.now.Sub(began))
		n := s.queued()
		s.arrivals = s.arrivals[n:]
		sent := s.now
		s.pass(s.commit)
		s.committed(sent, s.now, n, n > 1 || first.Before(s.last))
		s.batches = append(s.batches, n)
	}
}

func (s *simulated) queued() int {
	n := 0
	for n < len(s.arrivals) && !s.arrivals[n].After(s.now) {
		n++
	}
	return n
}

func (s *simulated) waiting() waiting {
	n := s.queued()
	return waiting{requests: n, first: s.arrivals[0], newest: s.arrivals[n-1]}
}

func repeated(n int, gaps ...time.Duration) []time.Duration {
	var all []time.Duration
	for range n {
		all = append(all, gaps...)
	}
	return all
}

func longest(waits []time.Duration) time.Duration {
	var most time.Duration
	for _, w := range waits {
		most = max(most, w)
	}
	return most
}

func TestGathering(t *testing.T) {
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		commit       time.Duration
		gaps         []time.Duration
		transactions int           // at most
		wait         time.Duration // at most, of any transaction
	}{
		"one after the other, each when the last is done, never waits": {
			commit: 2 * ms, gaps: repeated(200, 5*ms), transactions: 200, wait: 0,
		},
		"now and then two at once after a pause never wait": {
			commit: 2 * ms, gaps: repeated(20, 200*ms, 0), transactions: 20, wait: 0,
		},
		"now and then two, the second while the first is written, wait a moment at most": {
			commit: 2 * ms, gaps: repeated(20, 200*ms, ms, 0), transactions: 40, wait: ms,
		},
		"250 a second in twos, the second while the first is written, share a tenth of the transactions": {
			commit: ms / 2, gaps: repeated(500, 8*ms, ms/10), transactions: 100, wait: widest,
		},
		"250 a second in twos share a tenth of the transactions": {
			commit: 3 * ms, gaps: repeated(500, 8*ms, 0), transactions: 100, wait: widest,
		},
		"160 a second in irregular steps share a tenth of the transactions": {
			commit: 3 * ms, gaps: repeated(200, 2*ms, 15*ms, 0, 10*ms, ms), transactions: 110, wait: widest,
		},
		"100 a second in irregular steps share hardly more": {
			commit: 5 * ms, gaps: repeated(200, 2*ms, 25*ms, 0, 20*ms, 3*ms), transactions: 120, wait: widest,
		},
		"300 a second share a thirtieth of the transactions, once the window is widest": {
			commit: 5 * ms, gaps: repeated(1000, 3*ms, 4*ms, 3*ms), transactions: 90, wait: widest,
		},
		"300 a second that stall as often as ovn-northd computes share a twentieth of the transactions": {
			commit: 5 * ms, gaps: repeated(20, slices.Concat(repeated(60, 3*ms), []time.Duration{wide + 50*ms})...), transactions: 60, wait: widest,
		},
		"250 a second on a machine that stalls for half of the time share a fiftieth of the transactions": {
			commit: 20 * ms, gaps: repeated(24, slices.Concat(repeated(124, 2*ms), []time.Duration{252 * ms})...), transactions: 60, wait: widest,
		},
		"150 a second on a machine that stalls for longer share a twentieth": {
			commit: 20 * ms, gaps: repeated(25, slices.Concat(repeated(119, 3*ms), []time.Duration{403 * ms})...), transactions: 150, wait: widest,
		},
		"a hundred a second wait no longer than the wide window": {
			commit: 5 * ms, gaps: repeated(500, 20*ms, 0), transactions: 120, wait: wide,
		},
		"a thousand at once need no window for long": {
			commit: 5 * ms, gaps: repeated(1000, 0), transactions: 5, wait: 0,
		},
		"ten thousand a second wait until a transaction carries enough": {
			commit: ms, gaps: repeated(10000, ms/10), transactions: 10000 / enough, wait: 8 * ms,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := simulate(test.commit, test.gaps...)
			s.run()
			if len(s.batches) > test.transactions {
				t.Errorf("%d transactions for %d requests, want at most %d", len(s.batches), len(test.gaps), test.transactions)
			}
			if most := longest(s.waits); most > test.wait {
				t.Errorf("a transaction waited %s, want at most %s", most, test.wait)
			}
		})
	}
}

// TestGatheringOfRandomArrivals has single and clustered arrivals, at a server that is not idle.
func TestGatheringOfRandomArrivals(t *testing.T) {
	random := seed.Rand(seed.New(t), 1)
	for _, rate := range []float64{160, 250} {
		for _, clump := range []int{1, 3} {
			for _, commit := range []time.Duration{3 * time.Millisecond, 10 * time.Millisecond} {
				var gaps []time.Duration
				for len(gaps) < 2000 {
					gaps = append(gaps, time.Duration(random.ExpFloat64()*float64(clump)/rate*float64(time.Second)))
					gaps = append(gaps, repeated(clump-1, time.Millisecond)...)
				}
				s := simulate(commit, gaps...)
				s.run()
				if share := float64(len(s.batches)) / float64(len(gaps)); share > 0.12 {
					t.Errorf("%v a second in clumps of %d, %s each: %.3f transactions per request", rate, clump, commit, share)
				}
			}
		}
	}
}

// TestGatheringOnAMachineThatStalls has the arrivals of a burst under a quota of CPU time: everything stops for some tenths of a second, then
// all that came meanwhile arrives within a moment. The transactions take long, too.
func TestGatheringOnAMachineThatStalls(t *testing.T) {
	const ms = time.Millisecond
	random := seed.Rand(seed.New(t), 1)
	for _, test := range []struct{ rate, most float64 }{{50, 0.09}, {100, 0.05}} {
		for _, commit := range []time.Duration{25 * ms, 60 * ms} {
			var gaps []time.Duration
			for len(gaps) < 3000 {
				stall, awake := time.Duration(100+random.IntN(400))*ms, time.Duration(20+random.IntN(100))*ms
				gaps = append(gaps, stall)
				n := int(test.rate * (stall + awake).Seconds())
				for range n - 1 {
					gaps = append(gaps, time.Duration(random.ExpFloat64()*float64(awake)/float64(n)))
				}
			}
			s := simulate(commit, gaps...)
			s.run()
			if share := float64(len(s.batches)) / float64(len(gaps)); share > test.most {
				t.Errorf("%v a second, %s each: %.3f transactions per request, want at most %v", test.rate, commit, share, test.most)
			}
		}
	}
}

func TestGatheringEndsWithTheBurst(t *testing.T) {
	const ms = time.Millisecond
	burst := repeated(100, 8*ms, 0)
	for name, test := range map[string]struct {
		after []time.Duration
		waits []time.Duration // at most, from the first transaction after the burst
	}{
		"a request long after it does not wait": {after: []time.Duration{time.Second}, waits: []time.Duration{0}},
		"two at once do not wait either, soon after it, and the next two wait as in a burst": {
			after: []time.Duration{1100 * ms, 0, 300 * ms, 0}, waits: []time.Duration{0, wide},
		},
		"nor do any, once it is forgotten": {
			after: []time.Duration{3 * time.Second, 0, 300 * ms, 0}, waits: []time.Duration{0, ms},
		},
		"two at a time and then one at a time wait a moment at most, once the burst is forgotten": {
			after: append([]time.Duration{3 * time.Second, 0}, repeated(10, 90*ms, 0, 90*ms, 90*ms, 90*ms, 0)...), waits: slices.Repeat([]time.Duration{8 * ms}, 60),
		},
		"serial requests right after it wait twice": {
			after: []time.Duration{5 * ms, 104 * ms, 54 * ms, 5 * ms, 5 * ms},
			waits: []time.Duration{wide, widest / 2, 0, 0, 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := simulate(2*ms, burst...)
			s.run()
			at, before := s.now, len(s.waits)
			for _, gap := range test.after {
				at = at.Add(gap)
				s.arrivals = append(s.arrivals, at)
			}
			s.run()
			for i, w := range s.waits[before:] {
				if w > test.waits[i] {
					t.Errorf("transaction %d after the burst waited %s, want at most %s", i, w, test.waits[i])
				}
			}
		})
	}
}
