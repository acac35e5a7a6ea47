// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
)

// leased is the journal of a bridge with one address, of which a part of its lease of 32 s is left.
func leased(left time.Duration) *Journal {
	address := netip.MustParsePrefix("192.0.2.50/24")
	return &Journal{
		Bridge: "none", Phase: PhaseMoved, Before: State{Addresses: []Address{{Prefix: address, Valid: sinceBoot() + left}}},
		Leases: []Lease{{Address: address.Addr(), Duration: 32 * time.Second}},
	}
}

func TestAGuardReturnsALeaseThatNothingRenews(t *testing.T) {
	for left, want := range map[time.Duration]bool{time.Second: true, -time.Second: true, 20 * time.Second: false} {
		g := &Guard{Grace: time.Minute, missing: map[string]time.Time{}}
		if due, _ := g.due(leased(left)); due != want {
			t.Errorf("with %s left, it is due: %t, want %t", left, due, want)
		}
	}
	for left, want := range map[time.Duration]bool{5 * time.Second: false, 3 * time.Second: true} { // kiln ovs is earlier
		if l := (Lease{Duration: 32 * time.Second, Left: left}); (l.LostAfter() <= 0) != want || l.RenewAfter() > 0 {
			t.Errorf("with %s left, it is lost after %s, want now: %t, and is renewed after %s", left, l.LostAfter(), want, l.RenewAfter())
		}
	}
}

func TestABridgeWhoseAddressesHaveEndedIsNotComplete(t *testing.T) {
	complete, err := leased(-time.Second).complete(must(netlink.LinkByName("lo")))
	if complete || err != nil {
		t.Errorf("complete: %t, %v", complete, err)
	}
}

func TestClientIdentifiers(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	common := [][]byte{nil, {1, 2, 0, 0, 0, 0, 7}}
	for text, want := range map[string][][]byte{
		"":                      common,
		"ADDRESS=192.0.2.50\n":  common,
		"CLIENTID=ff00a1\n":     {{0xff, 0, 0xa1}, nil, {1, 2, 0, 0, 0, 0, 7}},
		"CLIENTID=not a number": common,
	} {
		dir := t.TempDir()
		if text != "" {
			try(t, os.WriteFile(filepath.Join(dir, "3"), []byte(text), 0o600))
		}
		got, err := Managers{Leases: dir}.ClientIDs(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: 3, HardwareAddr: mac}})
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v, %s", text, err, diff)
		}
	}
}
