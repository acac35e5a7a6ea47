// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kiln-net/kiln/internal/supervisor"
	"github.com/kiln-net/kiln/internal/uplink"
)

var (
	movesDesc = prometheus.NewDesc("kiln_uplink_moves_total",
		"Moves of interfaces to bridges of provider networks: begun, completed or undone by kiln ovs, and undone by its guard (restored).", []string{"hostname", "result"}, nil)
	renewalsDesc = prometheus.NewDesc("kiln_uplink_lease_renewals_total",
		"Requests to DHCP servers and routers to renew addresses and routes that have moved to bridges of provider networks: renewed, or failed.", []string{"hostname", "result"}, nil)
	uplinkDesc = prometheus.NewDesc("kiln_uplink_state",
		"1 for the phase of the interface of a provider network's bridge: Trial, Moved or Returned.", []string{"hostname", "bridge", "interface", "phase"}, nil)
)

// moveCounts counts moves since the start of the process.
type moveCounts struct{ begun, completed, undone, restored, renewed, notRenewed atomic.Int64 }

// collectUplinks reports the moves, and the phases in the journals.
func (p *providers) collectUplinks(f *supervisor.Figures) {
	for result, count := range map[string]*atomic.Int64{
		"begun": &p.moves.begun, "completed": &p.moves.completed, "undone": &p.moves.undone, "restored": &p.moves.restored,
	} {
		f.Counter(movesDesc, float64(count.Load()), p.options.Node, result)
	}
	f.Counter(renewalsDesc, float64(p.moves.renewed.Load()), p.options.Node, "renewed")
	f.Counter(renewalsDesc, float64(p.moves.notRenewed.Load()), p.options.Node, "failed")
	bridges, err := p.directory.List()
	if err != nil {
		p.options.Log.V(1).Info("no figures of uplinks", "reason", err.Error())
		return
	}
	for _, bridge := range bridges {
		if j, err := p.directory.Read(bridge); err == nil && j != nil {
			for _, phase := range []uplink.Phase{uplink.PhaseTrial, uplink.PhaseMoved, uplink.PhaseReturned} {
				f.Present(uplinkDesc, j.Phase == phase, p.options.Node, bridge, j.Uplink, string(phase))
			}
		}
	}
}
