// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package uplink

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Managers are the directories where programs store the state of the interfaces that they configure, in files whose names are indexes.
type Managers struct {
	Networkd, NetworkManager string
	// Leases has the DHCP leases of systemd-networkd, in files whose names are indexes.
	Leases string
}

// DefaultManagers are the directories on a node.
var DefaultManagers = Managers{Networkd: "/run/systemd/netif/links", NetworkManager: "/run/NetworkManager/devices", Leases: "/run/systemd/netif/leases"}

// Of returns which program configures an interface with this state; empty if none does.
func (m Managers) Of(link netlink.Link, s State) (string, error) {
	index := strconv.Itoa(link.Attrs().Index)
	networkd, err := stateFile(filepath.Join(m.Networkd, index))
	if err != nil {
		return "", err
	}
	if state := networkd["ADMIN_STATE"]; state != "" && state != "unmanaged" {
		return "systemd-networkd", nil
	}
	manager, err := stateFile(filepath.Join(m.NetworkManager, index))
	if err != nil {
		return "", err
	}
	if manager["managed"] != "false" && (manager["managed"] != "" || manager["connection-uuid"] != "") {
		return "NetworkManager", nil
	}
	for _, a := range s.Addresses {
		switch {
		case a.Valid != 0 && (a.Prefix.Addr().Is4() || a.Prefix.Bits() != 64): // addresses of router advertisements have 64 bits
			return "a DHCP client, because the address " + a.Prefix.String() + " has a limited lifetime", nil
		case a.Valid != 0:
			return "router advertisements, because the address " + a.Prefix.String() + " has a limited lifetime", nil
		case a.Flags&unix.IFA_F_NOPREFIXROUTE != 0:
			return "a network manager, because the kernel has no route of its own for the address " + a.Prefix.String(), nil
		}
	}
	for _, r := range s.Routes {
		if r.advertised() {
			return "router advertisements, because they have made the route " + r.String(), nil
		}
	}
	return "", nil
}

// stateFile reads the lines KEY=value of a file; none if it does not exist.
func stateFile(path string) (map[string]string, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // an empty map
	}
	if err != nil {
		return nil, fmt.Errorf("look for the manager of an interface: %w", err)
	}
	defer file.Close()
	values := map[string]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if key, value, found := strings.Cut(lines.Text(), "="); found {
			values[key] = value
		}
	}
	return values, nil
}

// Command and attribute of the generic netlink family ovs_vport (linux/openvswitch.h).
const (
	vportFamily  = "ovs_vport"
	vportVersion = 1
	vportDelete  = 2
	vportName    = 3
)

// datapathLink is the interface of the kernel's datapath.
const datapathLink = "ovs-system"

// attached reports whether an interface is a port of the kernel's datapath.
func attached(name string) bool {
	link, err := Link(name)
	if err != nil || link == nil || link.Attrs().MasterIndex == 0 {
		return false
	}
	master, err := netlink.LinkByIndex(link.Attrs().MasterIndex)
	return err == nil && master.Attrs().Name == datapathLink
}

// detach removes an interface from the kernel's datapath, which otherwise takes all packets that arrive at it. It does what ovs-vswitchd does
// when a port is removed, and is for the time when that process is dead. It is idempotent.
func detach(name string) error {
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
