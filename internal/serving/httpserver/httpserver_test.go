// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestAResultIsSharedUntilItIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		shared := ShareResult(time.Minute, func(context.Context) (int, error) {
			calls++
			return calls, errors.New("also shared")
		})
		for _, step := range []struct {
			after time.Duration
			want  int
		}{{0, 1}, {0, 1}, {Age / 2, 1}, {Age / 2, 2}, {Age - 1, 2}, {1, 3}} {
			time.Sleep(step.after)
			if got, err := shared(); got != step.want || err == nil {
				t.Errorf("after %s: result %d, %v; want %d", step.after, got, err, step.want)
			}
		}
	})
}

func TestParallelCallersShareOneCall(t *testing.T) {
	var calls, parallel, most atomic.Int32
	began := time.Now()
	shared := Share(time.Minute, func(context.Context) int {
		most.Store(max(most.Load(), parallel.Add(1)))
		defer parallel.Add(-1)
		calls.Add(1)
		return 7
	})
	var all sync.WaitGroup
	for range 500 {
		all.Go(func() {
			if got := shared(); got != 7 {
				t.Errorf("result %d", got)
			}
		})
	}
	all.Wait()
	if permitted := 1 + int32(time.Since(began)/Age); calls.Load() > permitted || most.Load() != 1 {
		t.Errorf("%d calls, %d at a time", calls.Load(), most.Load())
	}
}

func TestAHangingCallEndsForAllCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := Share(3*time.Second, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		began := time.Now()
		if err := shared(); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

func TestLocalRefusesOtherHosts(t *testing.T) {
	handler := Local(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for remote, want := range map[string]int{
		"127.0.0.1:40000": http.StatusOK, "[::1]:40000": http.StatusOK, "[::ffff:127.0.0.1]:40000": http.StatusOK, "@": http.StatusOK,
		"10.16.0.5:40000": http.StatusForbidden, "[fd00:10:16::5]:40000": http.StatusForbidden, "[fe80::1%eth0]:40000": http.StatusForbidden,
	} {
		r := httptest.NewRequest(http.MethodGet, "/readyz", http.NoBody)
		r.RemoteAddr = remote
		w := httptest.NewRecorder()
		if handler.ServeHTTP(w, r); w.Code != want {
			t.Errorf("from %s: %d, want %d", remote, w.Code, want)
		}
	}
}

func TestTheServerClosesEachConnectionAfterItsResponse(t *testing.T) {
	listener := must.Value(Listen(t.Context(), "127.0.0.1:0"))
	server := New(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	conn := must.Value(net.Dial("tcp", listener.Addr().String()))
	defer conn.Close()
	must.Value(conn.Write([]byte("GET / HTTP/1.1\r\nHost: node\r\n\r\n")))
	must.Succeed(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	if _, err := io.ReadAll(conn); err != nil {
		t.Error(err)
	}
}

// network is a listener that accepts connections of chosen sources.
type network struct{ accepted chan net.Conn }

func (n network) Accept() (net.Conn, error) {
	select {
	case c := <-n.accepted:
		return c, nil
	default:
		return nil, net.ErrClosed // the connection that a test waits for was refused
	}
}

func (network) Close() error   { return nil }
func (network) Addr() net.Addr { return &net.TCPAddr{} }

type connection struct {
	net.Conn
	source netip.Addr
	closed atomic.Bool
}

func (c *connection) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.source, 40000))
}
func (c *connection) Close() error { c.closed.Store(true); return nil }

// port returns a function that connects from a source, and one that accepts, on a port with bounds.
func port() (connect func(netip.Addr) *connection, accept func() net.Conn) {
	connect, accept, _ = boundedPort()
	return connect, accept
}

func boundedPort() (connect func(netip.Addr) *connection, accept func() net.Conn, l *listener) {
	n := network{accepted: make(chan net.Conn, 10*maxConnections)}
	l = &listener{Listener: n, rates: Rates{PerSecond: newPerSecond, Burst: newBurst}}
	connect = func(source netip.Addr) *connection {
		c := &connection{source: source}
		n.accepted <- c
		return c
	}
	return connect, func() net.Conn { return must.Value(l.Accept()) }, l
}

func address(host int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 16, byte(host >> 8), byte(host)})
}

func TestOneSourceCannotTakeAllConnections(t *testing.T) {
	connect, accept := port()
	flood := make([]*connection, maxPerSource+5)
	for i := range flood {
		flood[i] = connect(address(66))
	}
	innocent := connect(address(2))
	for range maxPerSource {
		accept()
	}
	last, is := accept().(*conn)
	if !is || last.Conn != innocent {
		t.Fatal("the connection of another source is not accepted")
	}
	for i, c := range flood {
		if c.closed.Load() != (i >= maxPerSource) {
			t.Errorf("connection %d: closed %t", i, c.closed.Load())
		}
	}
}

func TestAFullPortAcceptsNewSources(t *testing.T) {
	connect, accept := port()
	var flood []*connection
	for source := range maxConnections / maxPerSource {
		for range maxPerSource {
			flood = append(flood, connect(address(100+source)))
			accept()
		}
	}
	innocent := connect(address(2))
	if accept().(*conn).Conn != innocent || !flood[0].closed.Load() {
		t.Error("the oldest connection is not closed for a new source")
	}
	for i := range 10 {
		connect(address(200 + i))
		accept()
	}
	if innocent.closed.Load() {
		t.Error("the connection of a source with one connection is closed although others have more")
	}
}

func TestAFullPortKeepsTheConnectionsOfKnownSources(t *testing.T) {
	connect, accept, l := boundedPort()
	l.known = func(source netip.Addr) bool { return source == address(2) }
	known := []*connection{connect(address(2)), connect(address(2))}
	for range known {
		accept()
	}
	for source := range 2 * maxConnections { // one connection of each: the known source has the most, and the oldest
		connect(address(100 + source))
		accept()
	}
	for _, c := range known {
		if c.closed.Load() {
			t.Error("a connection of the known source is closed")
		}
	}
	if len(l.open) > maxConnections {
		t.Errorf("%d connections are open", len(l.open))
	}
}

func TestClosedConnectionsAreNotCounted(t *testing.T) {
	connect, accept := port()
	for range newBurst {
		c := connect(address(5))
		must.Succeed(t, accept().Close())
		if !c.closed.Load() {
			t.Fatal("the connection is open")
		}
	}
}

func TestConnectionsOfTheNodeAreNotBounded(t *testing.T) {
	connect, accept := port()
	for range 2 * maxConnections {
		connect(netip.MustParseAddr("127.0.0.1"))
		accept()
	}
	connect(netip.MustParseAddr("::ffff:127.0.0.1"))
	accept()
}

func TestRatesAreOfEachSource(t *testing.T) {
	now := time.Now()
	r := Rates{PerSecond: 2, Burst: 3}
	allowed := func(source netip.Addr) (n int) {
		for range 10 {
			if r.Allow(source, now) {
				n++
			}
		}
		return n
	}
	if a, b := allowed(address(1)), allowed(address(2)); a != 3 || b != 3 {
		t.Errorf("%d and %d of the burst of 3", a, b)
	}
	now = now.Add(time.Second)
	if a := allowed(address(1)); a != 2 {
		t.Errorf("%d after a second", a)
	}
	for i := range 3 * maxSources {
		r.Allow(address(1000+i), now)
		if len(r.sources) > maxSources {
			t.Fatalf("%d sources are recorded", len(r.sources))
		}
	}
}
