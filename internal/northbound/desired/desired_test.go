// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

// TestUUIDs pins the row UUIDs, which live databases depend on: they are UUIDv5 (RFC 9562) and must never change.
func TestUUIDs(t *testing.T) {
	long := strings.Repeat("x", 253)
	for _, r := range []Ref{
		{Owner: Owner{Kind: "Vpc", Name: "ovn-cluster"}, Key: "router"},
		{Owner: Owner{Kind: "Pod", Namespace: "shop", Name: "web.0"}, Key: "ovn"},
		{Owner: Owner{Kind: "Pod", Namespace: long, Name: long}, Key: long},
		{},
	} {
		if got, want := r.UUID(), uuid.NewSHA1(rowSpace, []byte(r.Owner.String()+"\x00"+r.Key)).String(); got != want {
			t.Errorf("%v has UUID %s, want %s", r, got, want)
		}
	}
	if got := (Ref{Owner: Owner{Kind: "Vpc", Name: "ovn-cluster"}, Key: "router"}).UUID(); got != "cd3b60dd-9290-5c2e-9aa3-a6882d8792ac" {
		t.Errorf("the UUID of the default VPC's router has become %s", got)
	}
}
