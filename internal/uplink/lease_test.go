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
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/must"
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

// TestAShortAnswer has an answer of one second to a lease of an hour, of which half an hour is left.
func TestAShortAnswer(t *testing.T) {
	now := sinceBoot()
	l := Lease{Duration: time.Second, At: now, Longest: time.Hour, Left: 30 * time.Minute}
	if after := l.RenewAfter(); after > time.Second/2 {
		t.Errorf("it is renewed after %s", after)
	}
	if after := l.LostAfter(); after != 30*time.Minute-leastReturn {
		t.Errorf("it is lost after %s", after)
	}
	l = Lease{Duration: 5 * time.Minute, At: now, Longest: 24 * time.Hour, Left: 5 * time.Minute} // a server with shorter leases
	if after := l.LostAfter(); after < 4*time.Minute {
		t.Errorf("a shorter lease is lost after %s", after)
	}
}

func TestOneEntryOfEachKindCounts(t *testing.T) {
	const now = time.Hour
	router := func(ends time.Duration) Route {
		return Route{Family: 6, Gateway: netip.MustParseAddr("fe80::1"), Protocol: unix.RTPROT_RA, Expires: now + ends}
	}
	s := State{Routes: []Route{router(time.Minute), router(time.Hour)}, Addresses: []Address{
		{Prefix: netip.MustParsePrefix("2001:db8::1/64"), Valid: now + 20*time.Minute, Preferred: now + 10*time.Minute},
		{Prefix: netip.MustParsePrefix("2001:db8:1::1/64"), Valid: now + time.Second},
	}}
	if left, limited := s.left(Lease{}, now); left != 10*time.Minute || !limited {
		t.Errorf("left %s, %t", left, limited)
	}
	s.Routes = s.Routes[:1]
	if left, limited := s.left(Lease{}, now); left != time.Minute || !limited {
		t.Errorf("with one router, left %s, %t", left, limited)
	}
}

// TestAnAddressOfASingleHostEndsAlone has an address from a DHCP server that came after a move: no router advertises it, and its end returns no interface.
func TestAnAddressOfASingleHostEndsAlone(t *testing.T) {
	const now = time.Hour
	s := State{
		Routes:    []Route{{Family: 6, Gateway: netip.MustParseAddr("fe80::1"), Protocol: unix.RTPROT_RA, Expires: now + time.Hour}},
		Addresses: []Address{{Prefix: netip.MustParsePrefix("2001:db8::9/128"), Valid: now + time.Second}},
	}
	if left, limited := s.left(Lease{}, now); left != time.Hour || !limited {
		t.Errorf("left %s, %t", left, limited)
	}
}

func TestABridgeWhoseAddressesHaveEndedIsNotComplete(t *testing.T) {
	complete, err := leased(-time.Second).complete(must.Value(netlink.LinkByName("lo")))
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
			must.Succeed(t, os.WriteFile(filepath.Join(dir, "3"), []byte(text), 0o600))
		}
		got, err := Managers{Leases: dir}.ClientIDs(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: 3, HardwareAddr: mac}})
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %v, %s", text, err, diff)
		}
	}
}
