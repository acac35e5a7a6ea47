// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

func TestADeposedLeaderIsRefused(t *testing.T) {
	server := nbtest.Start(t)
	first := start(t, server.Endpoint())
	if err := first.try(subnet("s"), subnetRows("s")); !errors.Is(err, northbound.ErrDeposed) {
		t.Errorf("before Lead: got %v, want ErrDeposed", err)
	}
	first.takeLead()
	first.apply(subnet("s"), subnetRows("s"))
	over := first.Over()
	second := lead(t, server.Endpoint())
	if err := first.try(subnet("t"), subnetRows("t")); !errors.Is(err, northbound.ErrDeposed) {
		t.Errorf("got %v, want ErrDeposed", err)
	}
	select {
	case <-over:
	default:
		t.Error("the end of the first leader's term is not reported")
	}
	if got := first.Acknowledged(); !got.IsZero() {
		t.Errorf("the first leader's last commit is %v, want none", got)
	}
	if err := first.try(subnet("s"), nil); !errors.Is(err, northbound.ErrDeposed) {
		t.Errorf("got %v, want ErrDeposed", err)
	}
	if got := server.Names("Logical_Switch"); !cmp.Equal(got, []string{"s"}) {
		t.Errorf("switches: %v", got)
	}
	second.apply(subnet("u"), subnetRows("u"))
	first.takeLead()
	first.apply(subnet("t"), subnetRows("t"))
}

// A partitioned leader does not receive its successor's term; the fence in its transaction must stop it.
func TestADeposedLeaderThatWasCutOffIsRefused(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	first := lead(t, proxy.Endpoint())
	proxy.Hold()
	failed := make(chan error, 1)
	go func() { failed <- first.try(subnet("late"), subnetRows("late")) }()
	proxy.AwaitHeld()
	lead(t, server.Endpoint()).apply(subnet("s"), subnetRows("s"))
	proxy.Release()
	if err := <-failed; !errors.Is(err, northbound.ErrDeposed) {
		t.Errorf("got %v, want ErrDeposed", err)
	}
	if got := server.Names("Logical_Switch"); !cmp.Equal(got, []string{"s"}) {
		t.Errorf("switches: %v", got)
	}
}

// A transaction that is in flight while a barrier is written must not be committed after it, because the sender may have
// treated it as lost.
func TestABarrierStopsEarlierRequests(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := lead(t, proxy.Endpoint())
	proxy.Hold()
	sent := proxy.Transactions()
	done := make(chan error, 1)
	go func() { done <- e.try(subnet("late"), subnetRows("late")) }()
	proxy.AwaitHeld()
	server.Transact(nbtest.Op{"op": "mutate", "table": "NB_Global", "where": []any{}, "mutations": []any{
		[]any{"external_ids", "delete", []any{"set", []any{"kiln-barrier"}}},
		[]any{"external_ids", "insert", []any{"map", []any{[]any{"kiln-barrier", "1.7"}}}},
	}})
	proxy.Release()
	if err := <-done; err != nil {
		t.Errorf("got %v: the term is still its own", err)
	}
	if used := proxy.Transactions() - sent; used != 2 {
		t.Errorf("%d transactions, want one that is refused and one that is not", used)
	}
}

// An idle leader proves that it can write; a partitioned one cannot.
func TestTheLastCommitIsRenewed(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := prepare(t, proxy.Endpoint())
	northbound.SetCanaryInterval(e.Engine, 20*time.Millisecond)
	e.run()
	if got := e.Acknowledged(); !got.IsZero() {
		t.Errorf("before Lead: %v, want none", got)
	}
	e.takeLead()
	taken := e.Acknowledged()
	eventually.Wait{For: "the last commit is renewed", Pause: 5 * time.Millisecond}.Holds(t, func() bool { return e.Acknowledged().After(taken) })
	proxy.Hold()
	proxy.AwaitHeld()
	held := e.Acknowledged()
	time.Sleep(100 * time.Millisecond)
	if got := e.Acknowledged(); !got.Equal(held) {
		t.Errorf("the last commit is %v after %v, though nothing was committed", got, held)
	}
	proxy.Release()
	eventually.Wait{For: "the last commit is renewed again", Pause: 5 * time.Millisecond}.Holds(t, func() bool { return e.Acknowledged().After(held) })
}

func TestAnIdleLeaderCommitsOncePerInterval(t *testing.T) {
	const interval = time.Second
	server := nbtest.Start(t)
	e := prepare(t, server.Endpoint())
	northbound.SetCanaryInterval(e.Engine, interval)
	e.run()
	e.takeLead()
	last := e.Acknowledged()
	for range 3 {
		eventually.Wait{For: "the last commit is renewed", Pause: 5 * time.Millisecond}.Holds(t, func() bool { return e.Acknowledged().After(last) })
		next := e.Acknowledged()
		if gap := next.Sub(last); gap > interval*5/4 {
			t.Errorf("two commits are %v apart, want at most %v", gap, interval)
		}
		last = next
	}
}

func TestLeadersThatRaceTakeDifferentTerms(t *testing.T) {
	server := nbtest.Start(t)
	engines := make([]*engine, 5)
	for i := range engines {
		engines[i] = start(t, server.Endpoint())
	}
	var running sync.WaitGroup
	for _, e := range engines {
		running.Go(e.takeLead)
	}
	running.Wait()
	leaders := 0
	for i, e := range engines {
		err := e.try(subnet("s"), subnetRows(strings.Repeat("s", i+1)))
		switch {
		case err == nil:
			leaders++
		case !errors.Is(err, northbound.ErrDeposed):
			t.Error(err)
		}
	}
	if leaders != 1 {
		t.Errorf("%d leaders", leaders)
	}
	if got := len(server.Rows("NB_Global")); got != 1 {
		t.Errorf("%d rows in NB_Global", got)
	}
}

func TestLeadersSetUnsetOptions(t *testing.T) {
	for name, test := range map[string]struct{ there, want map[string]string }{
		"in a new database":             {want: map[string]string{"northd-backoff-interval-ms": "300"}},
		"next to other owners' options": {there: map[string]string{"a": "b"}, want: map[string]string{"a": "b", "northd-backoff-interval-ms": "300"}},
		"but not over a value of some":  {there: map[string]string{"northd-backoff-interval-ms": "0"}, want: map[string]string{"northd-backoff-interval-ms": "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := nbtest.Start(t)
			if test.there != nil {
				server.Transact(nbtest.Op{"op": "insert", "table": "NB_Global", "row": map[string]any{"options": nbtest.Map(test.there)}})
			}
			lead(t, server.Endpoint()).stop()
			for range 2 { // the next leader does not change them
				for _, row := range server.Rows("NB_Global") {
					if diff := cmp.Diff(test.want, row["options"]); diff != "" {
						t.Errorf("options (-want +got):\n%s", diff)
					}
				}
				lead(t, server.Endpoint()).stop()
			}
		})
	}
}
