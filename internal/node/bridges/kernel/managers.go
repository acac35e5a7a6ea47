// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
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
		if r.Advertised() {
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

// ClientIDs returns the client identifiers that the DHCP client of an interface can have: the one of systemd-networkd, none, and the MAC address with its type, as
// in RFC 2132, section 9.14.
func (m Managers) ClientIDs(link netlink.Link) ([][]byte, error) {
	ids := [][]byte{nil, append([]byte{1}, link.Attrs().HardwareAddr...)}
	lease, err := stateFile(filepath.Join(m.Leases, strconv.Itoa(link.Attrs().Index)))
	if err != nil {
		return nil, err
	}
	if own, err := hex.DecodeString(lease["CLIENTID"]); err == nil && len(own) > 0 && len(own) < 256 {
		ids = append([][]byte{own}, ids...)
	}
	return ids, nil
}
