// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package underlay

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	v1 "github.com/kiln-net/kiln/api/v1"
	"github.com/kiln-net/kiln/internal/testing/must"
	"github.com/kiln-net/kiln/internal/testing/nodetest"
)

var podMAC = net.HardwareAddr{2, 0, 0, 0x30, 0, 10}

func TestHostsOfThePhysicalNetworkAreFound(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	p := newPhysical(t)
	p.addresses = map[int][]netip.Addr{0: addrs("10.30.0.254", "fd00:30::fe"), tag: addrs("10.37.0.254", "fd00:37::fe")}
	own, ownInVLAN := addrs("10.30.0.10", "fd00:30::10"), addrs("10.37.0.10", "fd00:37::10")
	for _, tt := range []struct {
		name   string
		look   Look
		strict bool
		holder string
		silent []netip.Addr
	}{
		{name: "nothing to look for"},
		{name: "free addresses", look: Look{Addresses: own, MAC: podMAC}},
		{name: "an IPv4 address in use", look: Look{Addresses: addrs("10.30.0.254", "fd00:30::10"), MAC: podMAC}, holder: "10.30.0.254"},
		{name: "an IPv6 address in use", look: Look{Addresses: addrs("10.30.0.10", "fd00:30::fe"), MAC: podMAC}, holder: "fd00:30::fe"},
		{name: "an address that is the pod's", look: Look{Addresses: addrs("10.30.0.254"), MAC: hostMAC}},
		{name: "addresses in use in another VLAN", look: Look{Addresses: addrs("10.37.0.254", "fd00:37::fe"), MAC: podMAC}},
		{name: "an IPv4 address in use in the VLAN", look: Look{Tag: tag, Addresses: addrs("10.37.0.254"), MAC: podMAC}, holder: "10.37.0.254"},
		{name: "an IPv6 address in use in the VLAN", look: Look{Tag: tag, Addresses: addrs("fd00:37::fe"), MAC: podMAC}, holder: "fd00:37::fe"},
		{name: "gateways that answer", look: Look{Addresses: own, MAC: podMAC, Gateways: addrs("10.30.0.254", "fd00:30::fe")}},
		{name: "gateways that answer in the VLAN", look: Look{Tag: tag, Addresses: ownInVLAN, MAC: podMAC, Gateways: addrs("10.37.0.254", "fd00:37::fe")}},
		{name: "gateways of a machine", look: Look{Migrates: true, Addresses: own, MAC: podMAC, Gateways: addrs("10.30.0.254", "fd00:30::fe")}},
		{name: "addresses of a machine on another node", look: Look{Migrates: true, Addresses: addrs("10.30.0.254", "fd00:30::fe"), MAC: hostMAC}},
		{name: "an address of a machine in use", look: Look{Migrates: true, Addresses: addrs("10.30.0.254"), MAC: podMAC}, holder: "10.30.0.254"},
		{
			name: "a silent gateway of one family", look: Look{Addresses: own, MAC: podMAC, Gateways: addrs("10.30.0.254", "fd00:30::1")},
			silent: addrs("fd00:30::1"),
		},
		{name: "a gateway in another VLAN", look: Look{Tag: tag, Gateways: addrs("10.30.0.254")}, silent: addrs("10.30.0.254")},
		{name: "gateways that answer senders with addresses", look: Look{Addresses: own, MAC: podMAC, Gateways: addrs("10.30.0.254", "fd00:30::fe")}, strict: true},
		{
			name:   "gateways that do not answer a machine without an address",
			look:   Look{Migrates: true, Addresses: own, MAC: podMAC, Gateways: addrs("10.30.0.254", "fd00:30::fe")},
			strict: true,
			silent: addrs("10.30.0.254", "fd00:30::fe"),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p.mu.Lock()
			p.strict, p.probes = tt.strict, nil
			p.mu.Unlock()
			n, look := &Neighbours{}, tt.look
			look.Interface = uplink
			holder, silent, err := n.Find(t.Context(), look)
			must.Succeed(t, err)
			got := ""
			if holder != nil {
				got = holder.Address.String()
			}
			if got != tt.holder || !slices.Equal(silent, tt.silent) {
				t.Errorf("holder %q, silent %v; want %q, %v", got, silent, tt.holder, tt.silent)
			}
			if len(n.listeners.byName) > 0 {
				t.Error("the socket stays open")
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, probe := range p.probes {
				if slices.Contains(look.Addresses, probe.address) && (probe.from.Address.IsValid() || bytes.Equal(probe.from.MAC, podMAC)) {
					t.Errorf("the probe for the pod's address %s has the sender %v", probe.address, probe.from)
				}
				if look.Migrates && (probe.from.Address.IsValid() || bytes.Equal(probe.from.MAC, look.MAC)) {
					t.Errorf("the probe for %s has the sender %v of a machine on another node", probe.address, probe.from)
				}
			}
		})
	}
}

func TestAPodGetsNoAddressOfItsNode(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	newPhysical(t)
	link, err := netlink.LinkByName(uplink)
	must.Succeed(t, err)
	above := netlink.NewLinkAttrs()
	above.Name, above.ParentIndex = "vrrp", link.Attrs().Index
	must.Succeed(t, netlink.LinkAdd(&netlink.Macvlan{LinkAttrs: above, Mode: netlink.MACVLAN_MODE_BRIDGE}))
	for name, address := range map[string]string{uplink: "10.30.0.77/24", "vrrp": "fd00:30::77/128", "lo": "10.30.0.78/32"} {
		on, err := netlink.LinkByName(name)
		must.Succeed(t, err)
		parsed, err := netlink.ParseAddr(address)
		must.Succeed(t, err)
		must.Succeed(t, netlink.AddrAdd(on, parsed))
	}
	for _, c := range []struct {
		address, on string
		vlan        int
	}{
		{address: "10.30.0.77", on: uplink},
		{address: "fd00:30::77", on: "vrrp"},
		{address: "10.30.0.77", vlan: 30}, // another network
		{address: "10.30.0.78"},           // on an interface of another network
		{address: "10.30.0.7"},
	} {
		err := checkNode(uplink, v1.PodNetwork{ProviderNetwork: "net1", VLAN: c.vlan, Addresses: addrs(c.address), LogicalSwitch: "lab"})
		if found := err != nil; found != (c.on != "") || found && !strings.Contains(err.Error(), "AddressConflict: interface "+c.on+" of the pod's node has address "+c.address) {
			t.Errorf("%s in VLAN %d: %v", c.address, c.vlan, err)
		}
	}
	vlan := &netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "eth2.30", ParentIndex: link.Attrs().Index}, VlanId: 30}
	for tag, want := range map[int]bool{0: false, 30: true, 31: false} {
		if got := isOn(vlan, tag, []string{uplink}); got != want {
			t.Errorf("the VLAN interface is on the network with tag %d: %v", tag, got)
		}
	}
}

func TestAnInterfaceThatDoesNotExistIsAnError(t *testing.T) {
	if _, _, err := (&Neighbours{}).Find(t.Context(), Look{Interface: "no-such-link", Gateways: addrs("10.30.0.254")}); err == nil {
		t.Error("a gateway behind an interface that does not exist answers")
	}
}

func TestPodsThatStartTogetherShareProbesOfTheirGateway(t *testing.T) {
	if !nodetest.Again(t) {
		return
	}
	const pods = 250
	p, gateway := newPhysical(t), netip.MustParseAddr("10.30.0.254")
	p.addresses = map[int][]netip.Addr{0: {gateway, netip.MustParseAddr("10.30.1.7")}}
	n := &Neighbours{}
	start := func(i int) error {
		address := netip.AddrFrom4([4]byte{10, 30, 1, byte(i)})
		holder, silent, err := n.Find(t.Context(), Look{
			Interface: uplink, Addresses: []netip.Addr{address}, MAC: net.HardwareAddr{2, 0, 0, 0x30, 1, byte(i)}, Gateways: []netip.Addr{gateway},
		})
		if conflict := holder != nil; err == nil && (conflict != (i == 7) || len(silent) > 0) {
			err = fmt.Errorf("pod %d: holder %v, silent %v", i, holder, silent)
		}
		return err
	}
	all := errgroup.Group{}
	for i := range pods {
		all.Go(func() error { return start(i) })
	}
	must.Succeed(t, errors.Join(all.Wait(), start(pods))) // the last one starts later
	p.mu.Lock()
	defer p.mu.Unlock()
	forGateway := 0
	for _, probe := range p.probes {
		if probe.address != gateway {
			continue
		}
		if forGateway++; probe.from.MAC[4] != 1 || probe.from.Address.IsValid() {
			t.Errorf("a probe of the gateway has the sender %v", probe.from)
		}
	}
	t.Logf("%d pods: %d probes, %d of them for the gateway", pods+1, len(p.probes), forGateway)
	if forGateway == 0 || forGateway > 3 {
		t.Errorf("%d probes for the gateway", forGateway)
	}
}

func TestTheVLANInterfaceOfAnInterface(t *testing.T) {
	const list = `VLAN Dev name	 | VLAN ID
Name-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD
eth1.30        | 30  | eth1
storage        | 31  | eth1
eth2.40        | 40  | eth2
`
	for id, want := range map[int]string{30: "eth1.30", 31: "storage", 40: "", 3: ""} {
		if got := vlanInterface(list, "eth1", id); got != want {
			t.Errorf("VLAN %d: got %q, want %q", id, got, want)
		}
	}
}
