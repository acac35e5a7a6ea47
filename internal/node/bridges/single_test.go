// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"

	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// single is an IPv6 address of a single host, which ends after these seconds, or never.
func single(seconds int) *netlink.Addr {
	return &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("2001:db8::9/128")), ValidLft: seconds, PreferedLft: seconds, Flags: syscall.IFA_F_NODAD}
}

// TestAnAddressThatTheNetworkDoesNotReachIsReported adds addresses of single hosts to an interface that has moved: like keepalived, and like a DHCP client.
func TestAnAddressThatTheNetworkDoesNotReachIsReported(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	ended := p.running(t)
	p.Request(t, ended, wanted)
	p.until(t, ended, providerbridge.StateReady)
	eth1, bridge := must.Value(netlink.LinkByName("eth1")), must.Value(netlink.LinkByName("br-net1"))
	four := netip.MustParsePrefix("192.0.2.9/32")
	is := func(v4, v6 bool) func() error {
		return func() error {
			four, six := nodetest.Ping(p.gateway, "192.0.2.9"), nodetest.Ping(p.gateway, "2001:db8::9")
			if (four == nil) != v4 || (six == nil) != v6 {
				return fmt.Errorf("192.0.2.9: %w, 2001:db8::9: %w", four, six)
			}
			return p.reached()
		}
	}

	must.Succeed(t, netlink.AddrAdd(eth1, &netlink.Addr{IPNet: netipx.PrefixIPNet(four)}))
	supervisortest.Eventually(t, "the gateway reaches the IPv4 address", is(true, false))
	must.Succeed(t, netlink.AddrAdd(eth1, single(0)))
	warned := func(warning string) func() error {
		return func() error {
			result := p.until(t, ended, providerbridge.StateReady)
			if (result.Message == "") != (warning == "") || !strings.Contains(result.Message, warning) {
				return fmt.Errorf("result: %+v", result)
			}
			return nil
		}
	}
	supervisortest.Eventually(t, "the result warns of the address", warned("the network does not reach the IPv6 address 2001:db8::9/128 on interface eth1"))
	supervisortest.Eventually(t, "the gateway reaches the node, and not the IPv6 address", is(true, false))

	must.Succeed(t, errors.Join(netlink.AddrDel(eth1, single(0)), netlink.AddrAdd(bridge, single(0))))
	supervisortest.Eventually(t, "the result warns no longer", warned(""))
	supervisortest.Eventually(t, "the gateway reaches the IPv6 address at the bridge", is(true, true))

	must.Succeed(t, errors.Join(netlink.AddrDel(bridge, single(0)), netlink.AddrAdd(eth1, single(600))))
	supervisortest.Eventually(t, "the gateway reaches the address of a DHCP client", func() error {
		if result := p.until(t, ended, providerbridge.StateReady); result.Moved != 3 {
			return fmt.Errorf("result: %+v", result)
		}
		return is(true, true)()
	})
}
