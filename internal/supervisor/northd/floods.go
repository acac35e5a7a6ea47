// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northd

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kiln-net/kiln/internal/supervisor/unixctl"
)

// Intervals of floods: the first one between its checks, and how many times longer than a full computation it waits after it has requested one.
const (
	floodsInterval = 500 * time.Millisecond
	floodsPause    = 10
)

// repaired counts the full computations that floods requested.
var repaired = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "kiln_northd_repairs_total",
	Help: "Full computations that the supervisor of ovn-northd requested, because new ports can be missing from the multicast groups of their switches.",
}, []string{"hostname"})

// floods finds iterations of ovn-northd's engine after which new ports can be missing from the multicast groups of their switches, such as _MC_flood, and
// requests a full computation (inc-engine/recompute, ovn-northd(8)), which adds them. Without it, broadcasts, multicasts, and ARP and neighbour
// discovery from a physical network never reach these ports.
//
// ovn-northd 25.03 adds a port to the groups when the engine's node `lflow` handles the change that added the port to the node `northd`. If it computes `lflow` from
// all inputs in the same iteration, for example because an ACL is added, the node `multicast_igmp` takes the change for handled, and nothing adds the port.
type floods struct {
	// lflowOnly is how many more times lflow was computed from all its inputs than northd, which includes lflow; ports is how often northd handled changes.
	lflowOnly, ports float64
}

// missed reports whether ports can have been missed since the last call, from the output of `inc-engine/show-stats`.
func (f *floods) missed(statistics string) bool {
	last := *f
	*f = floods{}
	for _, n := range unixctl.ParseEngine(statistics) {
		switch n.Name {
		case "northd":
			f.lflowOnly -= n.Recomputed
			f.ports = n.Computed
		case "lflow":
			f.lflowOnly += n.Recomputed
		}
	}
	return f.lflowOnly > last.lflowOnly && f.ports > last.ports
}

// repair requests a full computation if ports can have been missed, and returns the time until the next check.
func (f *floods) repair(ctx context.Context, call func(ctx context.Context, command string) (string, error)) (repaired bool, next time.Duration) {
	statistics, err := call(ctx, "inc-engine/show-stats")
	if err != nil || !f.missed(statistics) {
		return false, floodsInterval
	}
	begun := time.Now()
	if _, err := call(ctx, "inc-engine/recompute"); err != nil {
		*f = floods{} // requested again
		return false, floodsInterval
	}
	// The daemon computes after it has answered, and answers nothing meanwhile.
	_, _ = call(ctx, "status")
	return true, max(floodsInterval, floodsPause*time.Since(begun))
}

// watchFloods repairs multicast groups until ctx ends.
func (s *supervised) watchFloods(ctx context.Context) {
	var f floods
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
		done, pause := f.repair(ctx, s.call)
		if done {
			repaired.WithLabelValues(s.options.Node).Inc()
			s.options.Log.V(1).Info("requested a full computation: new ports can be missing from multicast groups")
		}
		next.Reset(pause)
	}
}
