// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/ndp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

// advertiser is two routers behind an interface, which advertise themselves, and the first one a prefix.
type advertiser struct {
	socket, second *ndp.Conn
	router, backup netip.Addr
	asked          atomic.Int64
	silent         atomic.Bool
	// alone makes the second router silent.
	alone atomic.Bool
}

var advertisedPrefix = netip.MustParsePrefix("2001:db8:1::/64")

// advertise answers solicitations until the end of the test, in the network namespace of the gateway.
func advertise(t *testing.T, in netns.NsHandle) *advertiser {
	t.Helper()
	a := &advertiser{}
	supervisortest.Eventually(t, "the router has a link-local address", func() (err error) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		here := must.Value(netns.Get())
		defer here.Close()
		must.Succeed(t, netns.Set(in))
		defer func() { must.Succeed(t, netns.Set(here)) }()
		a.socket, a.router, err = ndp.Listen(must.Value(net.InterfaceByName("peer")), ndp.LinkLocal)
		if err != nil {
			return err
		}
		peer := must.Value(netlink.LinkByName("peer"))
		second := &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("fe80::5/64")), Flags: unix.IFA_F_NODAD}
		must.Succeed(t, netlink.AddrReplace(peer, second))
		a.second, a.backup, err = ndp.Listen(must.Value(net.InterfaceByName("peer")), "fe80::5")
		return errors.Join(err, a.socket.JoinGroup(netip.IPv6LinkLocalAllRouters()))
	})
	go func() {
		for {
			message, _, _, err := a.socket.ReadFrom()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if _, ok := message.(*ndp.RouterSolicitation); err == nil && ok && !a.silent.Load() {
				a.asked.Add(1)
				_ = a.send()
			}
		}
	}()
	t.Cleanup(func() { _ = errors.Join(a.socket.Close(), a.second.Close()) })
	return a
}

func (a *advertiser) send() error {
	if a.alone.Load() {
		return a.first()
	}
	backup := a.second.WriteTo(&ndp.RouterAdvertisement{RouterLifetime: testLease}, nil, netip.IPv6LinkLocalAllNodes())
	return errors.Join(backup, a.first())
}

func (a *advertiser) first() error {
	return a.socket.WriteTo(&ndp.RouterAdvertisement{RouterLifetime: testLease, Options: []ndp.Option{&ndp.PrefixInformation{
		Prefix: advertisedPrefix.Addr(), PrefixLength: 64, OnLink: true, AutonomousAddressConfiguration: true, ValidLifetime: testLease, PreferredLifetime: testLease,
	}}}, nil, netip.IPv6LinkLocalAllNodes())
}

// has returns whether an interface has an address of the prefix that is not tentative, and the number of routers by which it has a default route.
func (a *advertiser) has(link string) (address bool, defaults int) {
	l := must.Value(netlink.LinkByName(link))
	for _, have := range must.Value(netlink.AddrList(l, netlink.FAMILY_V6)) {
		address = address || advertisedPrefix.Contains(netip.AddrFrom16([16]byte(have.IP.To16()))) && have.Flags&unix.IFA_F_TENTATIVE == 0
	}
	by := map[netip.Addr]bool{}
	for _, r := range must.Value(netlink.RouteList(l, netlink.FAMILY_V6)) {
		if gateway, _ := netip.AddrFromSlice(r.Gw); r.Protocol == syscall.RTPROT_RA && (gateway == a.router.WithZone("") || gateway == a.backup.WithZone("")) {
			by[gateway] = true
		}
	}
	return address, len(by)
}

// hasNoRoute checks that an interface without an address of the prefix has no route to it either.
func (a *advertiser) hasNoRoute(t *testing.T, link string) {
	t.Helper()
	for _, r := range must.Value(netlink.RouteList(must.Value(netlink.LinkByName(link)), netlink.FAMILY_V6)) {
		if r.Dst != nil && r.Dst.String() == advertisedPrefix.String() {
			t.Errorf("%s has the route %s", link, r)
		}
	}
}

func (a *advertiser) configures(link string) func() error {
	return func() error {
		if address, defaults := a.has(link); !address || defaults != 2 {
			return fmt.Errorf("%s has an address: %t, default routes by %d of 2 routers", link, address, defaults)
		}
		return nil
	}
}

// TestAdvertisedEntriesAreRenewed moves an interface that the kernel has configured from router advertisements. It returns when the router no longer
// answers, and then the kernel continues there.
func TestAdvertisedEntriesAreRenewed(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	must.Succeed(t, os.WriteFile("/proc/sys/net/ipv6/route/gc_interval", []byte("1"), 0o600)) // the kernel deletes routes that have ended at once, and not after 30 s
	router := advertise(t, p.gateway)
	supervisortest.Eventually(t, "the kernel configures eth1", func() error { return errors.Join(router.send(), router.configures("eth1")()) })
	ended := p.running(t)
	request := wanted["net1"]
	p.Request(t, ended, map[string]providerbridge.Request{"net1": request})
	if result := p.until(t, ended, providerbridge.StateFailed); result.Reason != providerbridge.ReasonManaged || !strings.Contains(result.Message, "router advertisements") {
		t.Errorf("without consent: %+v", result)
	}
	must.Succeed(t, router.send()) // the kernel's entries have as much time as at the beginning
	request.NodeInterface = providerbridge.NodeInterfaceAll
	before := router.asked.Load()
	p.Request(t, ended, map[string]providerbridge.Request{"net1": request})
	p.until(t, ended, providerbridge.StateReady)
	must.Succeed(t, router.configures("br-net1")())
	router.hasNoRoute(t, "eth1")
	if value := must.Value(os.ReadFile("/proc/sys/net/ipv6/conf/br-net1/accept_ra")); strings.TrimSpace(string(value)) != "0" {
		t.Errorf("accept_ra of br-net1 is %s", value)
	}
	moved := router.asked.Load()
	if moved == before {
		t.Error("the router was not asked before the move")
	}
	supervisortest.Eventually(t, "the router is asked again", func() error {
		if router.asked.Load() == moved {
			return errors.New("it was not")
		}
		return router.configures("br-net1")()
	})
	begun := time.Now()
	supervisortest.Eventually(t, "more than a lifetime passes", func() error {
		if time.Since(begun) < testLease {
			return errors.New("not yet")
		}
		return nil
	})
	must.Succeed(t, router.configures("br-net1")())

	router.alone.Store(true)
	supervisortest.Eventually(t, "the route by the second router ends", func() error {
		if address, defaults := router.has("br-net1"); !address || defaults != 1 {
			return fmt.Errorf("br-net1 has an address: %t, default routes by %d routers", address, defaults)
		}
		return nil
	})
	asked := router.asked.Load()
	supervisortest.Eventually(t, "the first router is asked further on", func() error {
		if result := p.until(t, ended, providerbridge.StateReady); router.asked.Load() < asked+2 {
			return fmt.Errorf("%d times after %d, %+v", router.asked.Load(), asked, result)
		}
		return nil
	})
	router.alone.Store(false)

	router.silent.Store(true)
	result := p.until(t, ended, providerbridge.StateFailed)
	if !strings.Contains(result.Message, "advertise") { // of this return, or of the next attempt
		t.Errorf("the cause is %q", result.Message)
	}
	router.hasNoRoute(t, "br-net1")
	for range 3 { // the kernel deletes a route like its own with the first one
		must.Succeed(t, router.send())
		supervisortest.Eventually(t, "the kernel configures eth1 again", router.configures("eth1"))
	}
	supervisortest.Eventually(t, "the gateway reaches the node", p.reached)
}
