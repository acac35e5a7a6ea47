// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"go4.org/netipx"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/node/bridges/journal"
	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
	"github.com/kiln-net/kiln/supervisor/supervisortest"
)

func TestNamesOfVLANInterfaces(t *testing.T) {
	for name, want := range map[string]int{"eth0.10": 10, "bond0.4094": 4094, "a.b.1": 1, "eth0": 0, "eth0.0": 0, "eth0.4095": 0, ".5": 0, "eth0.": 0, "eth0.x": 0} {
		_, id, is := vlanOf(name)
		if is != (want != 0) || is && id != want {
			t.Errorf("%s: VLAN %d, %v", name, id, is)
		}
	}
}

// addLink adds an interface, or skips the test if the kernel does not have its type, such as the kernels of some test machines.
func addLink(t *testing.T, h *netlink.Handle, link netlink.Link) netlink.Link {
	t.Helper()
	if err := h.LinkAdd(link); errors.Is(err, unix.EOPNOTSUPP) {
		t.Skipf("this kernel has no interfaces of type %s; make underlay-kernel runs this test", link.Type())
	} else if err != nil {
		t.Fatal(err)
	}
	must.Succeed(t, h.LinkSetUp(link))
	return must.Value(h.LinkByName(link.Attrs().Name))
}

// strip removes the addresses and routes of an interface.
func strip(t *testing.T, h *netlink.Handle, link netlink.Link) {
	t.Helper()
	must.Succeed(t, h.LinkSetDown(link)) // removes routes
	for _, a := range must.Value(h.AddrList(link, netlink.FAMILY_ALL)) {
		must.Succeed(t, h.AddrDel(link, &a))
	}
	must.Succeed(t, h.LinkSetUp(link))
}

func vlan(parent netlink.Link, id int) *netlink.Vlan {
	made := &netlink.Vlan{LinkAttrs: netlink.NewLinkAttrs(), VlanId: id}
	made.Name, made.ParentIndex = fmt.Sprintf("%s.%d", parent.Attrs().Name, id), parent.Attrs().Index
	return made
}

// TestVLANInterfacesStay moves an interface below a VLAN interface, and back. The node is reached by the VLAN interface all the time.
func TestVLANInterfacesStay(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	here, inside := must.Value(netlink.NewHandle()), must.Value(netlink.NewHandleAt(p.gateway))
	eth1 := must.Value(here.LinkByName("eth1"))
	strip(t, here, eth1)
	own := addLink(t, here, vlan(eth1, 7))
	far := addLink(t, inside, vlan(must.Value(inside.LinkByName("peer")), 7))
	must.Succeed(t, kernel.AddAddress(own, netip.MustParsePrefix("198.51.100.1/24")))
	must.Succeed(t, inside.AddrAdd(far, &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("198.51.100.2/24"))}))
	reached := func() error { return nodetest.Ping(p.gateway, "198.51.100.1") }
	supervisortest.Eventually(t, "the node is reached by its VLAN interface", reached)

	ended := p.running(t)
	q := providerbridge.Request{Interface: "eth1", Attempt: "1", Peers: []netip.Addr{netip.MustParseAddr("198.51.100.2")}, Turn: true}
	p.Request(t, ended, map[string]providerbridge.Request{"net1": q})
	supervisortest.Eventually(t, "consent is asked for", func() error {
		results, _, err := p.Results(t, ended)
		if r := results["net1"]; err == nil && (r.Reason != providerbridge.ReasonUnsuitable || !strings.Contains(r.Message, "VLAN interface eth1.7: set nodeInterface")) {
			err = fmt.Errorf("result: %+v", r)
		}
		return err
	})
	flow := startPings(t, p.gateway, netip.MustParseAddr("198.51.100.1"))
	q.NodeInterface, q.Attempt = providerbridge.NodeInterfaceStatic, "2"
	p.Request(t, ended, map[string]providerbridge.Request{"net1": q})
	if r := p.until(t, ended, providerbridge.StateReady); r.Moved != 0 {
		t.Errorf("result: %+v", r)
	}
	if j := must.Value(journal.DirectoryIn(p.options.RunDir).Read("br-net1")); len(j.Targets) != 1 || j.Targets[0].Interface != "eth1.7" {
		t.Errorf("there was no trial: %+v", j)
	}
	supervisortest.Eventually(t, "the node is reached after the move", reached)
	later := addLink(t, here, vlan(eth1, 8)) // the shield, if there is one, follows
	must.Succeed(t, kernel.AddAddress(later, netip.MustParsePrefix("203.0.113.1/24")))
	other := addLink(t, inside, vlan(must.Value(inside.LinkByName("peer")), 8))
	must.Succeed(t, inside.AddrAdd(other, &netlink.Addr{IPNet: netipx.PrefixIPNet(netip.MustParsePrefix("203.0.113.2/24"))}))
	supervisortest.Eventually(t, "the node is reached by a later VLAN interface", func() error { return nodetest.Ping(p.gateway, "203.0.113.1") })
	p.Request(t, ended, nil)
	supervisortest.Eventually(t, "the bridge is removed", gone("br-net1"))
	supervisortest.Eventually(t, "the node is reached after the return", reached)
	lost, _ := flow.lost()
	t.Logf("%d packets lost", lost)
}

// TestABondMoves moves a bond with the node's addresses to a bridge, and back.
func TestABondMoves(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	here := must.Value(netlink.NewHandle())
	made := netlink.NewLinkBond(netlink.LinkAttrs{Name: "bond0"})
	made.Mode, made.Miimon = netlink.BOND_MODE_ACTIVE_BACKUP, 100
	bond := addLink(t, here, made)
	eth1 := must.Value(here.LinkByName("eth1"))
	strip(t, here, eth1)
	must.Succeed(t, errors.Join(here.LinkSetDown(eth1), here.LinkSetMaster(eth1, bond), here.LinkSetUp(eth1)))
	for _, prefix := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		must.Succeed(t, kernel.AddAddress(bond, netip.MustParsePrefix(prefix)))
	}
	supervisortest.Eventually(t, "the node is reached by the bond", p.reached)
	ended := p.running(t)
	q := wanted["net1"]
	p.Request(t, ended, map[string]providerbridge.Request{"net1": q})
	supervisortest.Eventually(t, "the member is refused", func() error {
		results, _, err := p.Results(t, ended)
		if r := results["net1"]; err == nil && (r.Reason != providerbridge.ReasonUnsuitable || !strings.Contains(r.Message, "interface eth1 is a port of bond0")) {
			err = fmt.Errorf("result: %+v", r)
		}
		return err
	})
	q.Interface = "bond0"
	p.Request(t, ended, map[string]providerbridge.Request{"net1": q})
	if r := p.until(t, ended, providerbridge.StateReady); r.Moved != 2 {
		t.Errorf("result: %+v", r)
	}
	supervisortest.Eventually(t, "the node is reached by the bridge", p.reached)
	p.Request(t, ended, nil)
	supervisortest.Eventually(t, "the bridge is removed", gone("br-net1"))
	supervisortest.Eventually(t, "the node is reached by the bond again", p.reached)
}

// TestAMissingVLANInterfaceIsCreated requests a VLAN interface, with and without permission to create it.
func TestAMissingVLANInterfaceIsCreated(t *testing.T) {
	t.Parallel()
	if !nodetest.Again(t) {
		return
	}
	p := newProvided(t)
	eth1 := must.Value(netlink.LinkByName("eth1"))
	must.Succeed(t, netlink.LinkDel(addLink(t, must.Value(netlink.NewHandle()), vlan(eth1, 9))))
	interrupted, lost := vlan(eth1, 9), vlan(eth1, 11) // one without a mark, and one of a network that is not requested and never got a bridge
	interrupted.Name, lost.Alias = unmarked(interrupted), createdFor("br-net2")
	must.Succeed(t, netlink.LinkAdd(interrupted))
	must.Succeed(t, netlink.LinkAdd(lost))
	must.Succeed(t, netlink.LinkSetAlias(lost, lost.Alias))
	ended := p.running(t)
	q := providerbridge.Request{Interface: "eth1.9", Attempt: "1"}
	p.Request(t, ended, map[string]providerbridge.Request{"net1": q})
	supervisortest.Eventually(t, "it is missing", func() error {
		results, _, err := p.Results(t, ended)
		if r := results["net1"]; err == nil && r.Reason != providerbridge.ReasonNoInterface {
			err = fmt.Errorf("result: %+v", r)
		}
		return err
	})
	q.CreateVLAN, q.Attempt = true, "2"
	p.Request(t, ended, map[string]providerbridge.Request{"net1": q})
	p.until(t, ended, providerbridge.StateReady)
	if made, is := must.Value(netlink.LinkByName("eth1.9")).(*netlink.Vlan); !is || made.VlanId != 9 || made.ParentIndex != eth1.Attrs().Index {
		t.Errorf("created: %+v", made)
	}
	supervisortest.Eventually(t, "the node is reached", p.reached)
	supervisortest.Eventually(t, "the unfinished one is deleted", gone(interrupted.Name))
	supervisortest.Eventually(t, "the lost one is deleted", gone(lost.Name))
	q.Interface, q.Attempt = "eth1.10", "3"
	p.Request(t, ended, map[string]providerbridge.Request{"net1": q})
	supervisortest.Eventually(t, "the former one is deleted", gone("eth1.9"))
	p.until(t, ended, providerbridge.StateReady)
	p.Request(t, ended, nil)
	supervisortest.Eventually(t, "it is deleted", gone("eth1.10"))
	supervisortest.Eventually(t, "eth1 is as before", p.restored)
}

// gone returns a check that an interface does not exist.
func gone(name string) func() error {
	return func() error {
		link, err := kernel.Link(name)
		if link != nil {
			err = fmt.Errorf("interface %s is there", name)
		}
		return err
	}
}
