// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/containernetworking/plugins/pkg/testutils"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/agent/sandbox"
)

// Remove returns before the kernel has freed the devices, so its guarantees must hold when it returns.
func TestRemovedMeansGone(t *testing.T) {
	var wait sync.WaitGroup
	for range 20 {
		namespace, err := testutils.NewNS()
		must(t, err)
		t.Cleanup(func() { _ = errors.Join(namespace.Close(), testutils.UnmountNS(namespace)) })
		i := sandbox.Interface{NetNS: namespace.Path(), Name: "eth0", HostName: sandbox.HostName(newID(), "eth0", 0), MTU: podMTU, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
		wait.Go(func() {
			for range 5 { // with the same names, so that leftovers would conflict
				if err := errors.Join(i.Create(), sandbox.Remove(i.HostName)); err != nil {
					t.Error(err)
				}
				if there, err := sandbox.HasLink(i.HostName); there || err != nil {
					t.Errorf("the host's end is there: %v, %v", there, err)
				}
				err := namespace.Do(func(ns.NetNS) error {
					_, err := netlink.LinkByName("eth0")
					return err
				})
				if !errors.As(err, &netlink.LinkNotFoundError{}) {
					t.Errorf("the container's end: %v", err)
				}
			}
			if err := sandbox.Remove(i.HostName); err != nil {
				t.Errorf("removal of a missing interface: %v", err)
			}
		})
	}
	wait.Wait()
}

// newInterface creates an interface in a new network namespace. Both exist until the test ends.
func newInterface(t *testing.T) (sandbox.Interface, ns.NetNS) {
	t.Helper()
	namespace, err := testutils.NewNS()
	must(t, err)
	t.Cleanup(func() { _ = errors.Join(namespace.Close(), testutils.UnmountNS(namespace)) })
	i := sandbox.Interface{NetNS: namespace.Path(), Name: "eth0", HostName: sandbox.HostName(newID(), "eth0", 0), MTU: podMTU, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}
	must(t, i.Create())
	t.Cleanup(func() { must(t, sandbox.Remove(i.HostName)) })
	return i, namespace
}

func TestCreateSaysWhatIsInTheWay(t *testing.T) {
	i, _ := newInterface(t)
	for what, change := range map[string]func(*sandbox.Interface){
		"a device in the container": func(i *sandbox.Interface) { i.HostName = sandbox.HostName(newID(), "eth0", 0) },
		"a device on the host":      func(i *sandbox.Interface) { i.Name = "eth1" },
	} {
		other := i
		change(&other)
		if err := other.Create(); !errors.Is(err, sandbox.ErrExists) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if intact, err := i.Intact(); !intact || err != nil {
		t.Errorf("the earlier interface is missing: %v", err)
	}
}

// A restart of ovs-vswitchd, which answers for OVN, must not end established flows.
func TestPodsKeepKnownNeighboursThatDoNotAnswer(t *testing.T) {
	i, namespace := newInterface(t)
	must(t, i.Configure())
	must(t, namespace.Do(func(ns.NetNS) error { return keepsNeighbours("eth0") }))
}

// keepsNeighbours checks an interface of the current network namespace.
func keepsNeighbours(name string) error {
	for _, key := range sandbox.NeighbourProbeKeys(name) {
		content, err := os.ReadFile(filepath.Join("/proc/sys", key))
		if err != nil {
			return err
		}
		if got := strings.TrimSpace(string(content)); got != sandbox.NeighbourProbes {
			return fmt.Errorf("%s is %s, want %s", key, got, sandbox.NeighbourProbes)
		}
	}
	return nil
}

// TestRenumberKeepsAddressesInForce renumbers many times: the kernel adds the local route of an IPv6 address some time after it has
// confirmed the address.
func TestRenumberKeepsAddressesInForce(t *testing.T) {
	const times = 50
	i, namespace := newInterface(t)
	i.Addresses = []netip.Prefix{netip.MustParsePrefix("10.16.0.9/24"), netip.MustParsePrefix("fd00:10:16::9/64")}
	must(t, i.Configure())

	updates, done := make(chan netlink.RouteUpdate), make(chan struct{})
	handle := netns.NsHandle(namespace.Fd())
	must(t, netlink.RouteSubscribeWithOptions(updates, done, netlink.RouteSubscribeOptions{Namespace: &handle, ListExisting: true}))
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
		must(t, i.Renumber(nil))
		must(t, i.Verify())
	}
	<-ended
}
