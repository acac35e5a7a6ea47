// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northd

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kiln-net/kiln/supervisor/unixctl"
)

// floodsInterval is the time between two checks. After a request it is floodsPause times as long as the full computation took, at most floodsMaximum, so that a
// tenant whose changes cause requests does not delay the ports of others for long.
const (
	floodsInterval = 500 * time.Millisecond
	floodsPause    = 4
	floodsMaximum  = 10 * time.Second
	// floodsPoll is the time between looks whether a full computation has ended.
	floodsPoll = 50 * time.Millisecond
)

// repairs counts the full computations that floods requested.
var repairs = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "kiln_northd_repairs_total",
	Help: "Full computations that the supervisor of ovn-northd requested, because new ports can be missing from the multicast groups of their switches.",
}, []string{"hostname"})

// floods finds iterations of ovn-northd's engine after which new ports can be missing from the multicast groups of their switches, such as _MC_flood, and
// requests a full computation (inc-engine/recompute, ovn-northd(8)), which adds them. Without it, broadcasts, multicasts, and ARP and neighbour
// discovery from a physical network never reach these ports.
//
// ovn-northd 25.03 adds a port to the groups when the engine's node `lflow` handles the change that added the port. If it computes `lflow` from
// all inputs in the same iteration, for example because an ACL is added, the node `multicast_igmp` takes the change for handled, and nothing adds the port.
type floods struct{ last counts }

// counts has how often nodes of the engine were computed: lflow and northd from all their inputs (each time northd is, lflow is, too), and multicast_igmp from
// changes of northd.
type counts struct{ lflow, northd, changes float64 }

func countsOf(statistics string) (c counts) {
	for _, n := range unixctl.ParseEngine(statistics) {
		switch n.Name {
		case "lflow":
			c.lflow = n.Recomputed
		case "northd":
			c.northd = n.Recomputed
		case "multicast_igmp":
			c.changes = n.Computed
		}
	}
	return c
}

// missed reports whether ports can have been missed since the last counts.
func (c counts) missed(last counts) bool {
	return c.lflow-c.northd > last.lflow-last.northd && c.changes > last.changes
}

// repair requests a full computation if ports can have been missed, and waits for its end. It returns the time until the next check.
func (f *floods) repair(ctx context.Context, call func(ctx context.Context, command string) (string, error)) (requested bool, next time.Duration) {
	statistics, err := call(ctx, "inc-engine/show-stats")
	if err != nil {
		return false, floodsInterval
	}
	found := countsOf(statistics)
	if !found.missed(f.last) {
		f.last = found
		return false, floodsInterval
	}
	begun := time.Now()
	if _, err := call(ctx, "inc-engine/recompute"); err != nil {
		return false, floodsInterval // requested again
	}
	f.last = found // not a later one: ports can be missed between this look and the full computation
	// It begins after the transaction that is under way, and after a back-off.
	for took := time.Duration(0); took < floodsMaximum/floodsPause && ctx.Err() == nil; took = time.Since(begun) {
		if statistics, err = call(ctx, "inc-engine/show-stats"); err == nil && countsOf(statistics).northd != found.northd {
			break
		}
		select {
		case <-ctx.Done():
		case <-time.After(floodsPoll):
		}
	}
	return true, min(max(floodsInterval, floodsPause*time.Since(begun)), floodsMaximum)
}

// watchFloods repairs multicast groups until ctx ends.
func (s *supervised) watchFloods(ctx context.Context) {
	var f floods
	requests := repairs.WithLabelValues(s.options.Node)
	next := time.NewTimer(floodsInterval)
	defer next.Stop()
	of := s.running.Load()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		if process := s.running.Load(); process != of {
			of, f = process, floods{}
		}
		requested, pause := f.repair(ctx, s.call)
		if requested {
			requests.Inc()
			s.options.Log.V(1).Info("requested a full computation: new ports could be missing from multicast groups")
		}
		next.Reset(pause)
	}
}
