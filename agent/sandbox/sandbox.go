// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sandbox configures a container's network namespace: a veth whose other end stays on the host, its addresses and its routes.
// Every operation is idempotent and declares the desired state, so the next operation completes an interrupted one.
package sandbox

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kiln-net/kiln/internal/node/nodehealth"
)

// Route is a route of a container; its gateway is on the link.
type Route struct {
	To  netip.Prefix
	Via netip.Addr
}

// Interface is the desired interface in a container's network namespace.
type Interface struct {
	// NetNS is the path of the namespace.
	NetNS string
	// Name is the device's name in the namespace, HostName the name of the other end.
	Name     string
	HostName string
	MAC      net.HardwareAddr
	// MTU in bytes, of both ends.
	MTU       int
	Addresses []netip.Prefix
	Routes    []Route
	// ComputeChecksums makes the container's kernel compute the checksums of packets that it sends: Open vSwitch's userspace datapath
	// does not offload them.
	ComputeChecksums bool
}

var (
	// ErrNoNamespace means that a path is not, or no longer, a network namespace.
	ErrNoNamespace = errors.New("there is no such network namespace")
	// ErrExists means that the device exists already, on the host or in the namespace.
	ErrExists = errors.New("there is a device of that name")
)

// HasLink reports whether the host's end of a veth exists. It exists as long as the container's namespace.
func HasLink(hostName string) (bool, error) {
	link, err := find(hostName)
	return link != nil, err
}

// MaxNote is the longest note of a link, in bytes (IFALIASZ of linux/if.h, with its NUL).
const MaxNote = 255

// HostLink is the host's end of a link to a container.
type HostLink struct {
	// Index grows: of two links, the one with the higher index was made later.
	Index int
	Note  string
}

// HostLinks returns the host's ends of all links to containers, without probe links, by name.
func HostLinks() (map[string]HostLink, error) {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	found := map[string]HostLink{}
	for _, link := range links {
		if attrs := link.Attrs(); link.Type() == "veth" && nodehealth.IsPodLink(attrs.Name) {
			found[attrs.Name] = HostLink{Index: attrs.Index, Note: attrs.Alias}
		}
	}
	return found, nil
}

// Note sets the note of a link (ip-link(8), alias), which exists as long as the link. It succeeds if the link does not exist.
func Note(hostName, note string) error {
	link, err := find(hostName)
	if link == nil {
		return err
	}
	if err := unlessGone(netlink.LinkSetAlias(link, note)); err != nil {
		return fmt.Errorf("write the alias of link %s: %w", hostName, err)
	}
	return nil
}

// LinkIndex returns the index of a link of the host; 0 if there is no link of that name.
func LinkIndex(hostName string) (int, error) {
	link, err := find(hostName)
	if link == nil {
		return 0, err
	}
	return link.Attrs().Index, nil
}

func open(path string) (ns.NetNS, error) {
	namespace, err := ns.GetNS(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoNamespace, err)
	}
	return namespace, nil
}

// Intact reports whether both ends of the veth exist under their names and are peers.
func (i Interface) Intact() (bool, error) {
	namespace, err := open(i.NetNS)
	if err != nil {
		return false, err
	}
	defer namespace.Close()
	host, err := find(i.HostName)
	if err != nil || host == nil || host.Type() != "veth" {
		return false, err
	}
	intact := false
	err = namespace.Do(func(ns.NetNS) error {
		inside, err := find(i.Name)
		if inside == nil {
			return err
		}
		intact = inside.Type() == "veth" &&
			inside.Attrs().ParentIndex == host.Attrs().Index && host.Attrs().ParentIndex == inside.Attrs().Index
		return nil
	})
	return intact, err
}

// making serializes the creation of veths, which the kernel serializes too (rtnl_lock). A write to disable_ipv6 does not sleep on that
// lock: the kernel restarts it until the lock is free. Twenty concurrent pods spent half of the agent's CPU time in these restarts.
var making sync.Mutex

// Create creates the veth, with the container's end directly in its namespace, and brings the host's end up. It returns ErrExists if a
// device of either name exists.
func (i Interface) Create() error {
	namespace, err := open(i.NetNS)
	if err != nil {
		return err
	}
	defer namespace.Close()
	kernel, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer kernel.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = i.HostName
	attrs.MTU = i.MTU
	veth := netlink.NewVeth(attrs)
	veth.PeerName = i.Name
	veth.PeerNamespace = netlink.NsFd(namespace.Fd())
	veth.PeerHardwareAddr = i.MAC
	making.Lock()
	defer making.Unlock()
	switch err := kernel.LinkAdd(veth); {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("create veth %s with %s in %s: %w", i.HostName, i.Name, i.NetNS, ErrExists)
	case err != nil:
		return fmt.Errorf("create veth %s with %s in %s: %w", i.HostName, i.Name, i.NetNS, err)
	}
	// The node's IP stack must not process IPv6 from the pod, especially router advertisements: only Open vSwitch may receive frames of
	// this link.
	if err := writeSysctl("net/ipv6/conf/"+i.HostName+"/disable_ipv6", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := kernel.LinkSetUp(veth); err != nil {
		return fmt.Errorf("bring up %s: %w", i.HostName, err)
	}
	return nil
}

// find returns nil if there is no link of that name.
func find(name string) (netlink.Link, error) {
	link, err := netlinksafe.LinkByName(name)
	if err == nil {
		return link, nil
	}
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) || isGone(err) {
		return nil, nil
	}
	return nil, fmt.Errorf("look for link %s: %w", name, err)
}

// Sysctls is the directory through which kernel parameters are written. An unprivileged container can only read its own /proc/sys, so the
// node's is mounted at another path. The files below net always belong to the network namespace of the writing thread.
var Sysctls = "/proc/sys"

// NeighbourProbes is the number of broadcast requests, one per second, before the kernel gives up a known neighbour that does not answer
// the three unicast ones (mcast_resolicit, ip-sysctl). Open vSwitch answers requests for OVN in ovs-vswitchd, also with the kernel's
// datapath. Without these requests, established flows end after eight seconds without ovs-vswitchd, although the kernel still forwards
// them. The kernel sends packets to the known address meanwhile; an answer from another one replaces it. A minute is longer than the
// replacement of a node's Open vSwitch takes on a slow machine.
const NeighbourProbes = "60"

// NeighbourProbeKeys returns the kernel parameters for NeighbourProbes on an interface, one per family.
func NeighbourProbeKeys(name string) []string {
	return []string{"net/ipv4/neigh/" + name + "/mcast_resolicit", "net/ipv6/neigh/" + name + "/mcast_resolicit"}
}

// setSysctl writes a kernel parameter of the current network namespace, unless it has the value already: key is its path below /proc/sys.
func setSysctl(key, value string) error {
	have, err := os.ReadFile("/proc/sys/" + key)
	if err != nil {
		return fmt.Errorf("read kernel parameter: %w", err)
	}
	if strings.TrimSpace(string(have)) == value {
		return nil
	}
	return writeSysctl(key, value)
}

func writeSysctl(key, value string) error {
	if err := os.WriteFile(filepath.Join(Sysctls, key), []byte(value), 0o644); err != nil { //nolint:gosec // a kernel parameter, which exists
		return fmt.Errorf("set kernel parameter to %s: %w", value, err)
	}
	return nil
}
