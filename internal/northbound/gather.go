// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import "time"

// Gathering. A transaction costs ovsdb-server, and above all ovn-northd, much more than one more owner in it.
const (
	// enough requests in a transaction: from here on a wider window gains little.
	enough = 16
	// full is how many queued requests end the window.
	full = 32
	// narrowest and widest bound the window. At 250 pods/s a window of 64 ms gathers 16, at 100 the widest gathers 10.
	narrowest = time.Millisecond
	widest    = 100 * time.Millisecond
)

// gatherer decides how long a transaction waits for more requests to share it. While requests come one after the other, each when
// the one before is done, it does not wait. The window opens when one came while another was under way, doubles with each
// transaction until they carry enough, and closes when two in succession carry one that came alone. It is not safe for concurrent use.
type gatherer struct {
	window time.Duration // from the arrival of a transaction's first request
	last   time.Time     // when the last transaction ended
	alone  bool          // it carried one request, which came when nothing else was under way
}

// wait returns how much longer the next transaction waits, given when its first request came and how many there are.
func (g *gatherer) wait(now, first time.Time, requests int) time.Duration {
	if first.Sub(g.last) > widest {
		g.window = 0 // nothing came for so long: this is no burst any more
	}
	if requests >= full {
		return 0
	}
	return max(0, g.window-now.Sub(first))
}

// committed takes note of the transaction that has just ended: how many requests shared it, and whether any of them came while
// another was under way. One that did not had no company to wait for.
func (g *gatherer) committed(now time.Time, requests int, crowded bool) {
	g.last = now
	switch {
	case !crowded && (g.alone || g.window <= narrowest):
		g.window = 0
	case !crowded:
		g.window /= 2 // a lull, or the end of the burst: the next one tells
	case requests < enough:
		g.window = min(max(2*g.window, narrowest), widest)
	}
	g.alone = !crowded
}
