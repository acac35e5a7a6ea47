// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/hack/lab/topology"
)

// ensureBridge makes a plain learning bridge. Multicast snooping is off: without a querier, snooping drops neighbour discovery.
func ensureBridge(name string) error {
	return inNetns(Bridges, func() error {
		if link, err := netlink.LinkByName(name); err == nil {
			return netlink.LinkSetUp(link)
		}
		snooping := false
		bridge := &netlink.Bridge{LinkAttrs: attrs(name), MulticastSnooping: &snooping}
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("add bridge %s: %w", name, err)
		}
		if err := netlink.LinkSetUp(bridge); err != nil {
			return fmt.Errorf("set bridge %s up: %w", name, err)
		}
		return nil
	})
}

// ensure creates the cable, or recreates it when one of its ends is missing. A complete cable stays unchanged.
func (c cable) ensure(kernelDatapath bool) error {
	there, err := linkExists(c.netns, c.link)
	if err != nil {
		return err
	}
	port, err := linkExists(Bridges, c.port)
	if err != nil {
		return err
	}
	if there && port {
		return nil
	}
	if err := c.lay(); err != nil {
		return fmt.Errorf("lay the cable of %s: %w", c.port, err)
	}
	return inNetns(c.netns, func() error { return c.configure(kernelDatapath && !c.onSwitch()) })
}

// onSwitch reports whether the bridge is the switch, which attaches its ports itself.
func (c cable) onSwitch() bool { return c.bridge == topology.Provider.Name }

// lay makes the veth pair, with one end in the bridges' namespace.
func (c cable) lay() error {
	target, err := netnsHandle(c.netns)
	if err != nil {
		return err
	}
	defer target.Close()
	for _, end := range []struct{ netns, link string }{{c.netns, c.link}, {Bridges, c.port}} {
		if err := removeLink(end.netns, end.link); err != nil {
			return err
		}
	}
	return inNetns(Bridges, func() error {
		la := attrs(c.port)
		if !c.onSwitch() {
			bridge, err := netlink.LinkByName(c.bridge)
			if err != nil {
				return fmt.Errorf("find bridge %s: %w", c.bridge, err)
			}
			la.MasterIndex = bridge.Attrs().Index
		}
		veth := &netlink.Veth{
			LinkAttrs: la, PeerName: c.link, PeerHardwareAddr: c.hardwareAddr(), PeerNamespace: netlink.NsFd(int(target)),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("add the pair %s and %s: %w", c.port, c.link, err)
		}
		if err := netlink.LinkSetUp(veth); err != nil {
			return fmt.Errorf("set %s up: %w", c.port, err)
		}
		return nil
	})
}

// keepUp sets an interface up until the switch has attached it, or for attachTime. When the switch attaches it, it sets the promiscuous flag together with
// the flags that it read before, perhaps when the interface was down.
func keepUp(port string) error {
	// A look each 10 ms is simpler than a subscription to the kernel's messages, and happens once for each node.
	for end := time.Now().Add(attachTime); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		link, err := netlink.LinkByName(port)
		if err != nil {
			return fmt.Errorf("find %s: %w", port, err)
		}
		up := link.Attrs().Flags&net.FlagUp != 0
		if link.Attrs().Promisc != 0 && up {
			return nil
		}
		if !up {
			if err := netlink.LinkSetUp(link); err != nil {
				return fmt.Errorf("set %s up: %w", port, err)
			}
		}
	}
	return nil
}

// attachTime is more than the switch needs to attach an interface while it runs.
const attachTime = 3 * time.Second

// hardwareAddr is a hash of the port's name, so that a restarted node keeps its address and neighbour entries stay valid.
func (c cable) hardwareAddr() net.HardwareAddr {
	h := sha256.Sum256([]byte(c.port))
	return net.HardwareAddr{0x02, h[0], h[1], h[2], h[3], h[4]} // locally administered, unicast
}

// configure runs in the namespace of the cable's far end.
func (c cable) configure(partialChecksums bool) error {
	if !partialChecksums {
		if err := wireChecksums(c.link); err != nil {
			return err
		}
	}
	for _, name := range []string{"lo", c.link} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("set %s up: %w", name, err)
		}
	}
	link, err := netlink.LinkByName(c.link)
	if err != nil {
		return fmt.Errorf("find %s: %w", c.link, err)
	}
	if c.master != "" {
		master, err := netlink.LinkByName(c.master)
		if err != nil {
			return fmt.Errorf("find bridge %s: %w", c.master, err)
		}
		if err := netlink.LinkSetMaster(link, master); err != nil {
			return fmt.Errorf("attach %s: %w", c.link, err)
		}
	}
	for _, a := range c.addresses {
		addr := &netlink.Addr{IPNet: ipNet(a), Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("add %s to %s: %w", a, c.link, err)
		}
	}
	for _, g := range c.gateways {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: everywhere(g), Gw: g.AsSlice()}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("add the default route through %s: %w", g, err)
		}
	}
	return nil
}

// wireChecksums turns transmit checksum offload off, so that packets on this cable have checksums, as on a wire. A userspace
// datapath that reads packets at the other end needs them.
func wireChecksums(link string) error {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return fmt.Errorf("open ethtool: %w", err)
	}
	defer tool.Close()
	if err := tool.Change(link, map[string]bool{"tx-checksum-ip-generic": false}); err != nil {
		return fmt.Errorf("turn checksum offload of %s off: %w", link, err)
	}
	return nil
}

func removeHostLink() error { return removeLink("", HostLink) }

func hostLinkExists() (bool, error) { return linkExists("", HostLink) }

func removeLink(netnsName, name string) error {
	return inNetns(netnsName, func() error {
		link, err := netlink.LinkByName(name)
		if notFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find %s: %w", name, err)
		}
		if err := netlink.LinkDel(link); err != nil {
			return fmt.Errorf("remove %s: %w", name, err)
		}
		return nil
	})
}

func linkExists(netnsName, name string) (bool, error) {
	found := false
	err := inNetns(netnsName, func() error {
		_, err := netlink.LinkByName(name)
		found = err == nil
		if err != nil && !notFound(err) {
			return fmt.Errorf("find %s: %w", name, err)
		}
		return nil
	})
	return found, err
}

func notFound(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing)
}

func netnsHandle(name string) (netns.NsHandle, error) {
	path := NetnsPath(name)
	if name == "" {
		path = thisThreadNetns
	}
	h, err := netns.GetFromPath(path)
	if err != nil {
		return h, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	return h, nil
}

func attrs(name string) netlink.LinkAttrs {
	la := netlink.NewLinkAttrs()
	la.Name = name
	return la
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func everywhere(family netip.Addr) *net.IPNet {
	if family.Is4() {
		return &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	}
	return &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
}
