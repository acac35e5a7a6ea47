// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of a port. Connections of loopback addresses are not bounded: only processes of the node have them.
const (
	maxConnections = 128
	maxPerSource   = 16
	// newPerSecond and newBurst are the rate of new connections of each source.
	newPerSecond = 20
	newBurst     = 40
)

// maxSources bounds the memory of the rates of sources.
const maxSources = 4096

// Listen opens a TCP port with bounds on its connections. A source is an IP address. A source with too many connections is refused. If the port has
// too many connections, the oldest connection of the source that has the most is closed, so that a few sources cannot exclude the others.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	return ListenWith(ctx, address, nil)
}

// ListenWith is Listen with known sources. Their connections are not closed for others while sources that are not known have any. known must not block.
func ListenWith(ctx context.Context, address string, known func(source netip.Addr) bool) (net.Listener, error) {
	inner, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return &listener{Listener: inner, rates: Rates{PerSecond: newPerSecond, Burst: newBurst}, known: known}, nil
}

type listener struct {
	net.Listener
	rates Rates
	known func(netip.Addr) bool // nil for none

	mu   sync.Mutex
	open []*conn // the oldest first
}

// conn is an open connection of a source.
type conn struct {
	net.Conn
	source netip.Addr
	closed func()
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		source := addressOf(c.RemoteAddr().String())
		if !source.IsValid() || source.IsLoopback() {
			return c, nil
		}
		if admitted := l.admit(c, source, time.Now()); admitted != nil {
			return admitted, nil
		}
		abort(c)
	}
}

// admit returns the bounded connection; nil if the source must wait.
func (l *listener) admit(c net.Conn, source netip.Addr, now time.Time) net.Conn {
	if !l.rates.Allow(source, now) {
		return nil
	}
	admitted := &conn{Conn: c, source: source}
	admitted.closed = sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.open = slices.DeleteFunc(l.open, func(o *conn) bool { return o == admitted })
	})
	evicted, is := l.add(admitted)
	if evicted != nil {
		evicted.closed()
		abort(evicted.Conn)
	}
	if !is {
		return nil
	}
	return admitted
}

// add adds a connection, unless its source has too many. It returns the connection that must be closed in exchange, if any.
func (l *listener) add(c *conn) (evicted *conn, added bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := map[netip.Addr]int{}
	for _, o := range l.open {
		counts[o.source]++
	}
	if counts[c.source] >= maxPerSource {
		return nil, false
	}
	if len(l.open) >= maxConnections {
		candidates := l.candidates()
		most := 0
		for _, o := range candidates {
			most = max(most, counts[o.source])
		}
		evicted = candidates[slices.IndexFunc(candidates, func(o *conn) bool { return counts[o.source] == most })]
	}
	l.open = append(l.open, c)
	return evicted, true
}

// candidates returns the connections of which a full port closes one, the oldest first.
func (l *listener) candidates() []*conn {
	if l.known == nil {
		return l.open
	}
	others := slices.DeleteFunc(slices.Clone(l.open), func(o *conn) bool { return l.known(o.source) })
	if len(others) == 0 {
		return l.open
	}
	return others
}

// abort closes a connection with a TCP reset, which leaves no state in the kernel.
func abort(c net.Conn) {
	if tcp, is := c.(*net.TCPConn); is {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// Source returns the address of the client; the zero Addr for a Unix socket.
func Source(r *http.Request) netip.Addr { return addressOf(r.RemoteAddr) }

func addressOf(remote string) netip.Addr {
	at, _ := netip.ParseAddrPort(remote) // of a Unix socket: an empty string or `@`
	return at.Addr().Unmap().WithZone("")
}

// Rates limits how often each source may do something. Its zero value with PerSecond and Burst set is ready for use.
type Rates struct {
	PerSecond rate.Limit
	Burst     int

	mu      sync.Mutex
	sources map[netip.Addr]*rate.Limiter
}

// Allow reports whether the source may do it now, and counts it then.
func (r *Rates) Allow(source netip.Addr, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	limiter := r.sources[source]
	if limiter == nil {
		r.makeRoom(now)
		limiter = rate.NewLimiter(r.PerSecond, r.Burst)
		r.sources[source] = limiter
	}
	return limiter.AllowN(now, 1)
}

// makeRoom forgets sources that were silent for so long that they have their whole burst again. If most sources remain, it forgets all of them,
// so that its cost for each new source stays small: a rate for each source does not hold a client that has thousands of addresses.
func (r *Rates) makeRoom(now time.Time) {
	if r.sources != nil && len(r.sources) < maxSources {
		return
	}
	maps.DeleteFunc(r.sources, func(_ netip.Addr, l *rate.Limiter) bool { return l.TokensAt(now) >= float64(r.Burst) })
	if r.sources == nil || len(r.sources) > maxSources/2 {
		r.sources = map[netip.Addr]*rate.Limiter{}
	}
}
