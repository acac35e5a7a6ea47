// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
)

// An earlier pass may have added the address and failed to set rp_filter, or another program has reset it.
func TestAnAddressThatIsThereAcceptsPacketsFromAnySource(t *testing.T) {
	inNamespace(t, func(t *testing.T) {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "outside"}}
		network, err := netlink.ParseAddr("192.0.2.2/24")
		must(t, err)
		must(t, netlink.LinkAdd(link))
		must(t, netlink.AddrAdd(link, network))
		const key = "net/ipv4/conf/outside/rp_filter"
		for range 2 {
			must(t, sysctl(key, "1"))
			links, err := setClaims([]netip.Addr{netip.MustParseAddr("192.0.2.9")})
			must(t, err)
			if len(links) != 1 || links[0] != link.Index {
				t.Errorf("links %v have the address, want %d", links, link.Index)
			}
			if got := value(key); got != "2" {
				t.Errorf("rp_filter is %s, want 2", got)
			}
		}
	})
}
