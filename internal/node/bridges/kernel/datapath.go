// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Command and attribute of the generic netlink family ovs_vport (linux/openvswitch.h).
const (
	vportFamily  = "ovs_vport"
	vportVersion = 1
	vportDelete  = 2
	vportName    = 3
)

// DatapathLink is the interface of the kernel's datapath.
const DatapathLink = "ovs-system"

// Attached reports whether an interface is a port of the kernel's datapath.
func Attached(name string) bool {
	link, err := Link(name)
	if err != nil || link == nil || link.Attrs().MasterIndex == 0 {
		return false
	}
	master, err := netlink.LinkByIndex(link.Attrs().MasterIndex)
	return err == nil && master.Attrs().Name == DatapathLink
}

// Detach removes an interface from the kernel's datapath, which otherwise takes all packets that arrive at it. It does what ovs-vswitchd does
// when a port is removed, and is for the time when that process is dead. It is idempotent.
func Detach(name string) error {
	family, err := netlink.GenlFamilyGet(vportFamily)
	if errors.Is(err, unix.ENOENT) {
		return nil // the module is not loaded
	}
	if err != nil {
		return fmt.Errorf("look for the kernel's datapath: %w", err)
	}
	request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	request.AddData(&nl.Genlmsg{Command: vportDelete, Version: vportVersion})
	var anyDatapath [4]byte // struct ovs_header
	request.AddRawData(append(anyDatapath[:], nl.NewRtAttr(vportName, nl.ZeroTerminated(name)).Serialize()...))
	if _, err := request.Execute(unix.NETLINK_GENERIC, 0); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("detach %s from the kernel's datapath: %w", name, err)
	}
	return nil
}
