// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sandbox gives a container's network namespace its interface: a veth whose other end stays on the host, with addresses
// and routes. Every operation is idempotent and states what is to be there, so that one cut short is finished by the next.
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
)

// Route of a container; its gateway is on the link.
type Route struct {
	To  netip.Prefix
	Via netip.Addr
}

// Interface is what a container's network namespace is to have.
type Interface struct {
	// NetNS is the path of the namespace.
	NetNS string
	// Name in the namespace, and HostName of the other end.
	Name     string
	HostName string
	MAC      net.HardwareAddr
	// MTU in bytes, of both ends.
	MTU       int
	Addresses []netip.Prefix
	Routes    []Route
	// ComputeChecksums makes the container's kernel fill in the checksums of what it sends, which no device does in Open vSwitch's
	// userspace datapath.
	ComputeChecksums bool
}

var (
	// ErrNoNamespace says that a path is no network namespace, or no longer.
	ErrNoNamespace = errors.New("there is no such network namespace")
	// ErrExists says that there is a device already, on the host or in the namespace.
	ErrExists = errors.New("there is a device of that name")
)

// HasLink reports whether the host's end of a veth is there. It lives as long as the container's namespace.
func HasLink(hostName string) (bool, error) {
	link, err := find(hostName)
	return link != nil, err
}

// LinkIndex returns the index of a link of the host; 0 when there is none of that name.
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

// Intact reports whether the veth is there: both ends, under their names, joined to each other.
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

// making is held while a veth is made. The kernel makes one at a time as well (rtnl_lock), but who writes disable_ipv6 does not wait for that
// lock: the write is begun again and again, and twenty pods at once spent half of the agent's time in it.
var making sync.Mutex

// Create makes the veth, the container's end directly in its namespace, and brings the host's end up. It returns ErrExists when there
// is a device of either name already.
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
	// The node must not hear what a pod sends on this link, router advertisements above all: frames are Open vSwitch's alone.
	if err := writeSysctl("net/ipv6/conf/"+i.HostName+"/disable_ipv6", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := kernel.LinkSetUp(veth); err != nil {
		return fmt.Errorf("bring up %s: %w", i.HostName, err)
	}
	return nil
}

// find returns nil when there is no link of that name.
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

// Sysctls is the directory by which kernel parameters are written. A container without all privileges can only read its own /proc/sys, so the
// node's is mounted elsewhere: what is below net is of the network namespace that the writer is in, wherever it is mounted.
var Sysctls = "/proc/sys"

// setSysctl writes a kernel parameter of the current network namespace, unless it has the value: key is its path below /proc/sys.
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
