// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package database

import "testing"

func TestMergedMappingsLeaveEntriesOfOthers(t *testing.T) {
	for _, c := range []struct {
		name, mappings, own string
		present             bool
		want, owned         string
	}{
		{"the first entry", "", "", true, "net1:br-net1", "net1"},
		{"next to an entry of an administrator", "phys:br-ex", "", true, "phys:br-ex,net1:br-net1", "net1"},
		{"again", "net1:br-net1,phys:br-ex", "net1", true, "net1:br-net1,phys:br-ex", "net1"},
		{"an administrator removed it", "phys:br-ex", "net1", true, "phys:br-ex,net1:br-net1", "net1"},
		{"an administrator has the same entry", "net1:br-net1", "", true, "net1:br-net1", ""},
		{"removal", "phys:br-ex,net1:br-net1", "net1", false, "phys:br-ex", ""},
		{"removal of the last one", "net1:br-net1", "net1", false, "", ""},
		{"removal leaves an administrator's entry", "net1:br-net1", "", false, "net1:br-net1", ""},
		{"removal leaves other own entries", "net1:br-net1,net2:br-net2", "net1,net2", false, "net2:br-net2", "net2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, owned := mergeMappings(c.mappings, c.own, "net1", c.present); got != c.want || owned != c.owned {
				t.Errorf("%q, own %q; want %q, own %q", got, owned, c.want, c.owned)
			}
		})
	}
}
