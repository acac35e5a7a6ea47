// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox_test

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// TestRenumberKeepsAppliedAddresses renumbers many times: the kernel adds the local route of an IPv6 address some time after it has
// confirmed the address.
func TestRenumberKeepsAppliedAddresses(t *testing.T) {
	const times = 50
	i, namespace := newInterface(t)
	i.Addresses = []netip.Prefix{netip.MustParsePrefix("10.16.0.9/24"), netip.MustParsePrefix("fd00:10:16::9/64")}
	must.Succeed(t, i.Configure())

	updates, done := make(chan netlink.RouteUpdate), make(chan struct{})
	handle := netns.NsHandle(namespace.Fd())
	must.Succeed(t, netlink.RouteSubscribeWithOptions(updates, done, netlink.RouteSubscribeOptions{Namespace: &handle, ListExisting: true}))
	t.Cleanup(func() { close(done) })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		inForce, gone := map[string]int{}, 0
		for update := range updates {
			if update.Table != unix.RT_TABLE_LOCAL || update.Route.Type != unix.RTN_LOCAL || !update.Dst.IP.IsGlobalUnicast() {
				continue
			}
			address := update.Dst.IP.String()
			if update.Type == unix.RTM_NEWROUTE {
				inForce[address]++
				continue
			}
			if inForce[address]--; inForce[address] == 0 {
				t.Errorf("there was a moment without %s", address)
			}
			if gone++; gone == 2*times { // the IPv6 address is removed from eth0 and from lo
				return
			}
		}
	}()
	for n := range times {
		i.Addresses = []netip.Prefix{netip.PrefixFrom(i.Addresses[0].Addr(), 8+n%2), netip.PrefixFrom(i.Addresses[1].Addr(), 32+n%2)}
		must.Succeed(t, i.Renumber(nil))
		must.Succeed(t, i.Verify())
	}
	<-ended
}
