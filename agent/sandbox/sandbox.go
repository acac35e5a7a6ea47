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
	"strings"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
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

// ErrNoNamespace says that a path is no network namespace, or no longer.
var ErrNoNamespace = errors.New("there is no such network namespace")

// HasLink reports whether the host's end of a veth is there. It lives as long as the container's namespace.
func HasLink(hostName string) (bool, error) {
	link, err := find(hostName)
	return link != nil, err
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

// Create makes the veth anew, the container's end directly in its namespace, and brings the host's end up. What an earlier attempt
// left under HostName is removed, and with it the end in the container.
func (i Interface) Create() error {
	namespace, err := open(i.NetNS)
	if err != nil {
		return err
	}
	defer namespace.Close()
	if err := Remove(i.HostName); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = i.HostName
	attrs.MTU = i.MTU
	veth := netlink.NewVeth(attrs)
	veth.PeerName = i.Name
	veth.PeerNamespace = netlink.NsFd(namespace.Fd())
	veth.PeerHardwareAddr = i.MAC
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("create veth %s with %s in %s: %w", i.HostName, i.Name, i.NetNS, err)
	}
	// The node must not hear what a pod sends on this link, router advertisements above all: frames are Open vSwitch's alone.
	if err := setSysctl("net/ipv6/conf/"+i.HostName+"/disable_ipv6", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return fmt.Errorf("bring up %s: %w", i.HostName, err)
	}
	return nil
}

// Remove deletes the host's end of a veth, and with it the container's. One that is not there is no error.
func Remove(hostName string) error {
	link, err := find(hostName)
	if link == nil {
		return err
	}
	err = netlink.LinkDel(link)
	if err != nil && !isGone(err) {
		return fmt.Errorf("delete link %s: %w", hostName, err)
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

// setSysctl writes a kernel parameter of the current network namespace, unless it has the value: key is its path below /proc/sys.
func setSysctl(key, value string) error {
	path := "/proc/sys/" + key
	have, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read kernel parameter: %w", err)
	}
	if strings.TrimSpace(string(have)) == value {
		return nil
	}
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set kernel parameter to %s: %w", value, err)
	}
	return nil
}
