// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import "time"

// Gathering. A transaction costs ovsdb-server, and above all ovn-northd, much more than one more owner in it.
const (
	// enough requests in a transaction: a window that is not wide grows no further.
	enough = 16
	// plenty is where one that is wide stops growing.
	plenty = 128
	// full is how many queued requests end the window.
	full = 192
	// narrowest and wide bound the window. At 250 pods/s one of 64 ms gathers 16, at 100 the wide one gathers 10.
	narrowest = time.Millisecond
	wide      = 100 * time.Millisecond
	// widest is for bursts of which the wide window gathers enough: ovn-northd's computations get longer with the network, and it
	// is better to have fewer of them. Beyond wide, a pause of lull ends it: the burst may be over.
	widest = 500 * time.Millisecond
	lull   = 40 * time.Millisecond
)

// gatherer decides how long a transaction waits for more requests to share it. While requests come one after the other, each when
// the one before is done, it does not wait. The window opens when one came while another was under way, doubles with each
// transaction until they carry enough, and closes when two in succession carry one that came alone. It is not safe for concurrent use.
type gatherer struct {
	window time.Duration // from the arrival of a transaction's first request
	last   time.Time     // when the last transaction ended
	alone  bool          // it carried one request, which came when nothing else was under way
}

// waiting is what a transaction would carry now: how many requests, and when the first and the last of them came.
type waiting struct {
	requests      int
	first, newest time.Time
}

// wait returns how much longer the next transaction waits.
func (g *gatherer) wait(now time.Time, w waiting) time.Duration {
	// Nothing came for so long: this is no burst any more. One that is wide outlasts the stalls of an API server that shares a
	// CPU with ovn-northd: beginning anew after each would make small transactions, and so more computations and more stalls.
	if w.first.Sub(g.last) > max(wide, min(2*g.window, widest)) {
		g.window = 0
	}
	if w.requests >= full {
		return 0
	}
	unlessLull := max(wide-now.Sub(w.first), lull-now.Sub(w.newest))
	return max(0, min(g.window-now.Sub(w.first), unlessLull))
}

// committed takes note of the transaction that has just ended: how many requests shared it, and whether any of them came while
// another was under way. One that did not had no company to wait for.
func (g *gatherer) committed(now time.Time, requests int, crowded bool) {
	g.last = now
	switch {
	case !crowded && (g.alone || g.window <= narrowest):
		g.window = 0
	case !crowded:
		g.window /= 2 // a pause, or the end of the burst: the next one tells
	case requests < enough:
		g.window = min(max(2*g.window, narrowest), wide)
	case requests < plenty && g.window >= wide/2:
		g.window = min(2*g.window, widest)
	}
	g.alone = !crowded
}
