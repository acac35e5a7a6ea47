// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"

	"github.com/kiln-net/kiln/internal/endpoints"
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
	endpoints.Fill(slots[:local], old, 0, mine)
	endpoints.Fill(slots[local:], old, local, others)
	return slots, local
}
