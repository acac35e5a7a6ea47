// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"net/netip"
	"slices"
)

// Fill assigns the wanted endpoints to slots. An endpoint keeps its old slot if that is one of them; from is the index of slots[0] in
// old.
func Fill(slots, old []netip.AddrPort, from int, wanted map[netip.AddrPort]bool) {
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
