// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import "time"

// Gathering. One more transaction costs ovsdb-server, and above all ovn-northd, much more than one more owner in a transaction.
const (
	// enough is the number of requests in a transaction at which a window below wide/2 stops growing.
	enough = 16
	// plenty is the number of requests at which a wider window stops growing.
	plenty = 128
	// full is the number of queued requests that ends the window early.
	full = 192
	// narrowest and wide bound the window until it gathers enough, where transactions take 10 ms or less. At 250 pods/s a window of 64 ms
	// gathers 16 requests; at 100 pods/s the wide window gathers 10.
	narrowest = time.Millisecond
	wide      = 100 * time.Millisecond
	// widest bounds every window: in a burst in which the wide window gathers enough, and where transactions take long. ovn-northd's computations get longer with
	// the network, so fewer of them are better. Beyond wide, a pause of lull ends the window: the burst may be over.
	widest = 500 * time.Millisecond
	lull   = 40 * time.Millisecond
	// memory is how long after a transaction of half of enough requests a closed window may open again with the length that it had.
	// Machines with a quota of CPU time stall for parts of a second.
	memory = time.Second
	// rest is the length that a window may have until it gathers enough, as a multiple of the duration of transactions. It is beyond wide
	// where they take long, as on a slow machine.
	rest = 10
)

// gatherer decides how long a transaction waits for more requests to share it. It does not wait while requests are sequential,
// each sent after the previous one is done. The window opens when a request arrives while another is in flight. It doubles with
// each transaction until transactions carry enough requests. It closes when two transactions in succession carry a single
// request that arrived alone, or in a pause. After a burst it opens again with its former length. A gatherer is not safe for concurrent
// use.
type gatherer struct {
	window time.Duration // counted from the arrival of a transaction's first request
	before time.Duration // the window when it closed, for memory
	cost   time.Duration // the mean duration of recent transactions
	last   time.Time     // when the last transaction ended
	burst  time.Time     // when the last transaction of enough/2 requests ended
	alone  bool          // the last transaction carried one request, which arrived when no other was in flight
}

// waiting describes the queue: the number of requests, and when the first and the last of them arrived.
type waiting struct {
	requests      int
	first, newest time.Time
}

// wait returns the remaining time until the next transaction is due.
func (g *gatherer) wait(now time.Time, w waiting) time.Duration {
	// After such an idle time the burst is over. A wide window survives the stalls of an API server that shares a CPU with
	// ovn-northd: a new start after each stall would make small transactions, and therefore more computations and more stalls.
	if w.first.Sub(g.last) > max(wide, min(2*g.window, widest)) {
		g.close()
	}
	if w.first.Sub(g.burst) > memory {
		g.before = 0
	}
	if w.requests >= full {
		return 0
	}
	unlessLull := max(wide-now.Sub(w.first), lull-now.Sub(w.newest))
	return max(0, min(g.window-now.Sub(w.first), unlessLull))
}

// close ends the window.
func (g *gatherer) close() { g.before, g.window = max(g.before, g.window), 0 }

// committed adjusts the window after a transaction from began until now: requests is the number of requests in it, and crowded is true if
// any of them arrived while another was in flight. A request that is not crowded had no company to wait for.
func (g *gatherer) committed(began, now time.Time, requests int, crowded bool) {
	g.last = now
	g.cost += (min(now.Sub(began), widest/rest) - g.cost) / 4 // a reconnection is not a cost
	switch {
	case !crowded && (g.alone || g.window <= narrowest):
		g.close()
	case !crowded:
		g.window /= 2 // a pause, or the end of the burst: the next transaction decides
	case g.before > g.window:
		g.window, g.before = g.before, 0 // the burst goes on
	case requests < enough:
		g.window = min(max(2*g.window, narrowest), max(wide, min(rest*g.cost, widest)))
	case requests < plenty && g.window >= wide/2:
		g.window = min(2*g.window, widest)
	}
	if g.alone = !crowded; requests >= enough/2 {
		g.burst = now
	}
}
