// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import "testing"

// The lock of an ovn-northd on a failed node lasts until its connection ends.
func TestNorthdIsMissedBeforeOthers(t *testing.T) {
	remotes := Options{Database: Southbound}.configure("sb.db").Remotes
	probes := map[int]int{}
	for _, l := range Southbound.Clients {
		probes[l.Port] = remotes[passive(l.Port, Options{}.Listen)].InactivityProbe
	}
	if probes[6642] != clientProbe || probes[6649] != northdProbe {
		t.Errorf("the server asks clients after %v ms", probes)
	}
}
