// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

// byRouter is a default route as the kernel makes it from an advertisement.
func byRouter(address string, metric int, preference uint8) Route {
	return Route{
		Family: 6, Gateway: netip.MustParseAddr(address), Protocol: unix.RTPROT_RA, Table: unix.RT_TABLE_MAIN, Priority: metric,
		Expires: SinceBoot() + 1000*time.Second, Preference: preference,
	}
}

func TestDistinct(t *testing.T) {
	static := Route{Family: 6, Gateway: netip.MustParseAddr("fe80::9"), Priority: 1025}
	ipv4 := Route{Family: 4, Gateway: netip.MustParseAddr("192.0.2.254"), Priority: 1024}
	list := []Route{byRouter("fe80::1", 1024, 3), byRouter("fe80::2", 1024, 0), byRouter("fe80::3", 1024, 1), byRouter("fe80::2", 1025, 0), static, ipv4}
	for i := range list {
		list[i].Table = unix.RT_TABLE_MAIN
	}
	var got []string
	made := distinct(list, map[place]bool{{table: unix.RT_TABLE_MAIN, priority: 1026}: true})
	for _, r := range made {
		got = append(got, r.String())
	}
	var metrics []int
	for _, r := range made[2:] {
		metrics = append(metrics, r.Priority)
	}
	want := []string{"default via fe80::9", "default via 192.0.2.254", "default via fe80::3", "default via fe80::2", "default via fe80::1"}
	if !slices.Equal(got, want) || !slices.Equal(metrics, []int{1024, 1027, 1028}) {
		t.Errorf("routes %q with metrics %v", got, metrics)
	}
	if again := distinct(made, nil); !slices.Equal(again, made) {
		t.Errorf("a repetition changes them to %+v", again)
	}
}

// TestARouteThatHasEndedStaysOne reads a route whose end has come before the kernel has deleted it.
func TestARouteThatHasEndedStaysOne(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	link := nodetest.Veth(t, "eth1")
	r := byRouter("fe80::1", 1024, 0)
	r.Expires = SinceBoot() + time.Second
	must.Succeed(t, r.replace(link, nil))
	eventually.Wait{For: "the route ends"}.Succeeds(t, func() error {
		if SinceBoot() < r.Expires+time.Second/2 {
			return errors.New("not yet")
		}
		return nil
	})
	has := must.Value(Read(link)).Routes
	if len(has) != 1 || has[0].Expires == 0 || has[0].Expires > SinceBoot() {
		t.Fatalf("routes: %+v", has)
	}
	other := nodetest.Veth(t, "eth2")
	must.Succeed(t, has[0].replace(other, nil))
	if got := must.Value(Read(other)).Routes; len(got) > 0 {
		t.Errorf("it was added: %+v", got)
	}
}
