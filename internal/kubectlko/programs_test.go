// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"slices"
	"strings"
	"testing"
)

func TestPrograms(t *testing.T) {
	argv := map[string][]string{
		"ovn-nbctl --timeout=30 --db=unix:/run/ovn/ovnnb_db.sock --columns=name list Logical_Switch": databases[0].ctl([]string{"--columns=name", "list", "Logical_Switch"}),
		"ovn-sbctl --timeout=30 --db=unix:/run/ovn/ovnsb_db.sock":                                    databases[1].ctl(nil),
		"ovs-appctl --timeout=30 --target=/run/ovn/ovnsb_db.ctl cluster/kick OVN_Southbound ab12":    databases[1].appctl("cluster/kick", "ab12"),
	}
	for i, want := range []string{"ovs-vsctl --timeout=30 dump -x", "ovs-ofctl dump -x", "ovs-appctl dump -x", "ovs-appctl dpctl/dump -x"} {
		argv[want] = nodePrograms[i].argv([]string{"dump", "-x"})
	}
	for want, got := range argv {
		if !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("runs %q, want %q", got, want)
		}
	}
}
