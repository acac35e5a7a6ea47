// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"slices"
)

// arrange assigns slots to endpoints: the first ones to the endpoints of this node (here, a subset of all), the next ones to the others.
// An endpoint keeps its slot if possible.
func arrange(old, here, all []netip.AddrPort) (slots []netip.AddrPort, local int) {
	mine, others := map[netip.AddrPort]bool{}, map[netip.AddrPort]bool{}
	for _, e := range here {
		mine[e] = true
	}
	for _, e := range all {
		if !mine[e] {
			others[e] = true
		}
	}
	local = len(mine)
	slots = make([]netip.AddrPort, local+len(others))
	fill(slots[:local], old, 0, mine)
	fill(slots[local:], old, local, others)
	return slots, local
}

// fill assigns the wanted endpoints to slots. An endpoint keeps its old slot if that is one of them; from is the index of slots[0] in
// old.
func fill(slots, old []netip.AddrPort, from int, wanted map[netip.AddrPort]bool) {
	for i := range slots {
		if at := from + i; at < len(old) && wanted[old[at]] {
			slots[i] = old[at]
			delete(wanted, old[at])
		}
	}
	rest := make([]netip.AddrPort, 0, len(wanted))
	for e := range wanted {
		rest = append(rest, e)
	}
	slices.SortFunc(rest, netip.AddrPort.Compare)
	for i := range slots {
		if !slots[i].IsValid() {
			slots[i], rest = rest[0], rest[1:]
		}
	}
}
