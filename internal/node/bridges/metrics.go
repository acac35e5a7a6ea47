// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kiln-net/kiln/internal/node/bridges/journal"
	"github.com/kiln-net/kiln/supervisor"
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

// Collect reports the moves, and the phases in the journals.
func (m *Mover) Collect(f *supervisor.Figures) {
	for result, count := range map[string]*atomic.Int64{
		"begun": &m.moves.begun, "completed": &m.moves.completed, "undone": &m.moves.undone, "restored": &m.moves.restored,
	} {
		f.Counter(movesDesc, float64(count.Load()), m.options.Node, result)
	}
	f.Counter(renewalsDesc, float64(m.moves.renewed.Load()), m.options.Node, "renewed")
	f.Counter(renewalsDesc, float64(m.moves.notRenewed.Load()), m.options.Node, "failed")
	bridges, err := m.directory.List()
	if err != nil {
		m.options.Log.V(1).Info("no figures of uplinks", "reason", err.Error())
		return
	}
	for _, bridge := range bridges {
		if j, err := m.directory.Read(bridge); err == nil && j != nil {
			for _, phase := range []journal.Phase{journal.PhaseTrial, journal.PhaseMoved, journal.PhaseReturned} {
				f.Present(uplinkDesc, j.Phase == phase, m.options.Node, bridge, j.Uplink, string(phase))
			}
		}
	}
}
