// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package northbound

import (
	"fmt"
	"strconv"

	"github.com/kiln-net/kiln/internal/northbound/desired"
	ovsdbclient "github.com/kiln-net/kiln/internal/ovsdb/client"
	"github.com/kiln-net/kiln/internal/ovsdb/nb"
)

// ErrDatapaths is ErrWaiting because the database has as many logical switches and routers as ovn-northd can number. A deleted one, or a
// larger capacity, ends the wait.
var ErrDatapaths = fmt.Errorf("%w: the network has all the switches of subnets and routers of VPCs that it can have", ErrWaiting)

// KindCapacity is the kind of the owner with which subscribers are called after each change of the capacity. It owns no rows.
const KindCapacity = "capacity"

// Capacity is what ovn-northd can number: it gives each datapath, and each port of a datapath, a tunnel key, and silently connects
// nothing without one.
type Capacity struct {
	// Datapaths is the largest number of logical switches and routers.
	Datapaths int
	// Ports is the largest number of ports of a logical switch or router.
	Ports int
}

// Key spaces of ovn-northd (ovn-architecture(7), Tunnel Encapsulations). Keys begin with 1. The second half of the keys of ports is for
// multicast groups.
const (
	portKeys      = 1<<15 - 1
	portKeysVXLAN = 1<<11 - 1
	keysVXLAN     = 1<<12 - 1 // of datapaths
	keys          = 1<<24 - 1<<16
)

// optionMaxKey is the option of NB_Global in which ovn-northd reports the largest key of a datapath (ovn-nb(5), max_tunid). It depends on
// the encapsulations of the chassis: one chassis with VXLAN is enough for the small key spaces.
const optionMaxKey = "max_tunid"

// Capacity returns the capacity that ovn-northd has reported last. Before its first report, it is that of Geneve.
func (e *Engine) Capacity() Capacity {
	_, global := e.global()
	return capacityOf(global)
}

func capacityOf(global *nb.NBGlobal) Capacity {
	c := Capacity{Datapaths: keys, Ports: portKeys}
	if global == nil {
		return c
	}
	if reported, err := strconv.Atoi(global.Options[optionMaxKey]); err == nil && reported > 0 {
		c.Datapaths = reported
	}
	if c.Datapaths <= keysVXLAN {
		c.Ports = portKeysVXLAN
	}
	return c
}

// aDatapath is the row that owners wait for when ErrDatapaths stops them: the deletion of a datapath counts as its arrival.
var aDatapath = rowID{table: "a datapath less"}

func isDatapath(table string) bool {
	return table == nb.LogicalSwitchTable || table == nb.LogicalRouterTable
}

// admits reports whether the database has room for the datapaths that a plan inserts, beside those that earlier plans of the batch
// insert, and counts them.
func (pl *planner) admits(p *plan) bool {
	more := 0
	for _, insert := range p.inserts {
		if isDatapath(insert.table) {
			more++
		}
	}
	if more == 0 {
		return true
	}
	_, global := globalOf(pl.replica)
	have := len(pl.replica.Rows(nb.LogicalSwitchTable)) + len(pl.replica.Rows(nb.LogicalRouterTable))
	if have+pl.datapaths+more > capacityOf(global).Datapaths {
		return false
	}
	pl.datapaths += more
	return true
}

// follow adds a change of the capacity, and the deletion of a datapath, to the effects of an update.
func (fx *effects) follow(change ovsdbclient.RowChange) {
	switch {
	case change.Table == nb.NBGlobalTable:
		before, _ := change.Old.(*nb.NBGlobal)
		after, _ := change.New.(*nb.NBGlobal)
		if capacityOf(before) != capacityOf(after) {
			fx.touched = append(fx.touched, desired.Owner{Kind: KindCapacity})
			fx.arrived = append(fx.arrived, aDatapath)
		}
	case change.New == nil && isDatapath(change.Table):
		fx.arrived = append(fx.arrived, aDatapath)
	}
}
