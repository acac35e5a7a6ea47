// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"testing"
)

func TestOfTwoPortsForOneLogicalPortTheLaterStays(t *testing.T) {
	b := newBridge(t)
	errs, sent := b.together(t, b.attaching("old", "lsp"), b.attaching("new", "lsp"), b.attaching("other", "lsp-2"))
	for i, err := range errs {
		if err != nil {
			t.Errorf("port %d: %v", i, err)
		}
	}
	if names := b.names(t); len(names) != 2 || !names["new"] || !names["other"] || sent != 2 {
		t.Errorf("%d transactions made ports %v", sent, names)
	}
}
