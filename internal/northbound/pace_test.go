// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kiln-net/kiln/internal/northbound"
	"github.com/kiln-net/kiln/internal/northbound/desired"
	"github.com/kiln-net/kiln/internal/northbound/nbtest"
	"github.com/kiln-net/kiln/internal/testing/eventually"
)

// limits returns the limits in the database, by the pod.
func limits(server *nbtest.Server) map[string]string {
	of := map[string]string{}
	for _, row := range server.Rows("QoS") {
		of[strings.TrimSuffix(strings.TrimPrefix(fmt.Sprint(row["match"]), `outport == "`), `.ns"`)] = fmt.Sprint(row["bandwidth"])
	}
	return of
}

// limited is a pod with a limit.
func limited(name string, rate int) []desired.Row {
	return append(podRows(name, "s"), limitRow(name, "s", rate))
}

// leadAt starts an engine that leads, with a pace of slow changes.
func leadAt(t *testing.T, endpoint string, pace time.Duration) *engine {
	t.Helper()
	e := prepare(t, endpoint)
	northbound.SetPace(e.Engine, pace)
	e.run()
	e.takeLead()
	return e
}

// paced is an engine with a pace that has just written a limit, with the switch s.
func paced(t *testing.T, endpoint string, pace time.Duration) *engine {
	t.Helper()
	e := leadAt(t, endpoint, pace)
	e.apply(subnet("s"), subnetRows("s"))
	e.apply(pod("first"), limited("first", 1))
	return e
}

// settle waits until nothing of an owner is left for later.
func (e *engine) settle(o desired.Owner) {
	e.t.Helper()
	eventually.Wait{For: "the rows of " + o.String(), Pause: 10 * time.Millisecond}.Holds(e.t, func() bool { return !northbound.Busy(e.Engine, o) })
}

// brief is a pace that tests wait for.
const brief = 200 * time.Millisecond

// The first limit is in the transaction of its port. The next ones are left for later, and a process that follows writes them.
func TestLimitsAreLeftForLater(t *testing.T) {
	server := nbtest.Start(t)
	e := paced(t, server.Endpoint(), time.Hour)
	const pods = 40
	for _, name := range podNames(pods) {
		e.apply(pod(name), limited(name, 2))
	}
	e.apply(pod("first"), nil)
	if got, ports := limits(server), len(server.Rows("Logical_Switch_Port")); !maps.Equal(got, map[string]string{"first": "map[rate:1]"}) || ports != pods {
		t.Errorf("the limits are %v, and there are %d ports", got, ports)
	}
	e.stop()
	proxy := server.Proxy()
	e = lead(t, proxy.Endpoint())
	e.apply(pod("first"), nil)
	names := podNames(pods)
	sent := proxy.Transactions()
	e.applyAll(names, func(name string) []desired.Row { return limited(name, 3) })
	e.settle(pod("first"))
	for _, name := range names {
		e.settle(pod(name))
	}
	got := limits(server)
	if wrong := slices.IndexFunc(names, func(name string) bool { return got[name] != "map[rate:3]" }); wrong >= 0 || len(got) != pods {
		t.Errorf("%d limits: %v", len(got), got)
	}
	if sent = proxy.Transactions() - sent; sent > pods/2 {
		t.Errorf("%d limits took %d transactions", pods, sent)
	}
}

// What is left for later is always what the owner wants now.
func TestWhatIsLeftForLaterIsReplaced(t *testing.T) {
	for name, tt := range map[string]struct {
		wants [][]desired.Row // one after the other
		want  map[string]string
	}{
		"another rate":    {wants: [][]desired.Row{limited("p", 2), limited("p", 3)}, want: map[string]string{"p": "map[rate:3]"}},
		"no limit":        {wants: [][]desired.Row{limited("p", 2), podRows("p", "s")}},
		"no pod":          {wants: [][]desired.Row{limited("p", 2), nil}},
		"and back":        {wants: [][]desired.Row{limited("p", 2), nil, limited("p", 2)}, want: map[string]string{"p": "map[rate:2]"}},
		"the first again": {wants: [][]desired.Row{limited("p", 2), limited("p", 2)}, want: map[string]string{"p": "map[rate:2]"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := nbtest.Start(t)
			e := paced(t, server.Endpoint(), brief)
			var last []desired.Row
			for _, last = range tt.wants {
				e.apply(pod("p"), last)
			}
			e.settle(pod("p"))
			want := map[string]string{"first": "map[rate:1]"}
			maps.Copy(want, tt.want)
			if got := limits(server); !maps.Equal(got, want) {
				t.Errorf("the limits are %v, want %v", got, want)
			}
			if ports := len(server.Rows("Logical_Switch_Port")); ports != 1+min(1, len(last)) {
				t.Errorf("there are %d ports", ports)
			}
		})
	}
}

// What a term left is not written in the next one: its owners apply again.
func TestWhatAFormerTermLeftIsForgotten(t *testing.T) {
	server := nbtest.Start(t)
	e := paced(t, server.Endpoint(), time.Hour)
	e.apply(pod("p"), limited("p", 2))
	if !northbound.Busy(e.Engine, pod("p")) {
		t.Error("nothing is left for later")
	}
	e.takeLead()
	if northbound.Busy(e.Engine, pod("p")) {
		t.Error("the limit of the former term is left for later")
	}
}

// The owner of a change that fails later is called.
func TestALateChangeThatFailsIsReported(t *testing.T) {
	server := nbtest.Start(t)
	proxy := server.Proxy()
	e := paced(t, proxy.Endpoint(), time.Second)
	proxy.Poison(`p.ns\"`) // as the match of the limit is encoded, and not the name of the port
	if err := e.try(pod("p"), limited("p", 2)); err == nil {
		e.expectCall(pod("p"))
	} else if !errors.Is(err, northbound.ErrNoAnswer) { // on a slow machine nothing was left for later
		t.Fatal(err)
	}
	if refused := e.Refused(); len(refused) != 1 || refused[0].Owner != pod("p") {
		t.Errorf("the refusals are %v", refused)
	}
	proxy.Poison("")
	eventually.Wait{For: "the limit", Pause: 50 * time.Millisecond}.Holds(t, func() bool {
		err := e.try(pod("p"), limited("p", 2))
		if err != nil && !errors.Is(err, northbound.ErrNoAnswer) {
			t.Fatal(err)
		}
		return err == nil && limits(server)["p"] != ""
	})
}

// A burst of concurrent owners never loses a limit.
func TestABurstWithLimitsKeepsAll(t *testing.T) {
	server := nbtest.Start(t)
	e := paced(t, server.Endpoint(), brief)
	names := podNames(300)
	var running sync.WaitGroup
	for _, name := range names {
		running.Go(func() {
			for _, rows := range [][]desired.Row{limited(name, 5), podRows(name, "s"), nil, limited(name, 7)} {
				if err := e.try(pod(name), rows); err != nil {
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	for _, name := range names {
		e.settle(pod(name))
	}
	got := limits(server)
	delete(got, "first")
	if wrong := slices.IndexFunc(slices.Sorted(maps.Keys(got)), func(name string) bool { return got[name] != "map[rate:7]" }); wrong >= 0 || len(got) != len(names) {
		t.Errorf("%d limits of %d", len(got), len(names))
	}
}

// A limit that is left for later is written with the next limits of others at the latest, also while these come without a pause.
func TestALimitThatIsLeftIsNotOvertaken(t *testing.T) {
	for range 5 {
		server := nbtest.Start(t)
		e := paced(t, server.Endpoint(), 60*time.Millisecond) // less than the window in which requests of a burst gather
		e.apply(pod("p"), limited("p", 2))
		var running sync.WaitGroup
		var end atomic.Bool
		for i, name := range podNames(40) {
			running.Go(func() {
				for rate := 3; !end.Load(); rate++ {
					if err := e.try(pod(name), limited(name, rate)); err != nil {
						t.Error(err)
						end.Store(true)
					}
					if got := limits(server); i == 0 && len(got) > 2 { // not only first and p
						end.Store(true)
						if got["p"] == "" {
							t.Errorf("the limit is not written, but the ones of %d others are", len(got)-1)
						}
					}
				}
			})
		}
		running.Wait()
		e.stop()
	}
}
