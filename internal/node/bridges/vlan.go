// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package bridges

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/internal/node/bridges/kernel"
	"github.com/kiln-net/kiln/internal/node/providerbridge"
)

// maxVLAN is the highest VLAN of IEEE 802.1Q.
const maxVLAN = 4094

// vlanOf splits the name of a VLAN interface, such as eth0.10.
func vlanOf(name string) (parent string, id int, is bool) {
	at := strings.LastIndexByte(name, '.')
	if at <= 0 {
		return "", 0, false
	}
	id, err := strconv.Atoi(name[at+1:])
	return name[:at], id, err == nil && id >= 1 && id <= maxVLAN
}

// createdFor is the alias (ip-link(8)) of the VLAN interfaces that are created for a bridge. Only they are deleted.
func createdFor(bridge string) string { return createdPrefix + bridge + createdSuffix }

const (
	createdPrefix = "created for "
	createdSuffix = " by Kiln"
)

// creator returns the bridge of createdFor.
func creator(alias string) (bridge string, is bool) {
	bridge, is = strings.CutPrefix(alias, createdPrefix)
	bridge, ends := strings.CutSuffix(bridge, createdSuffix)
	return bridge, is && ends
}

// unmarked is the name of a VLAN interface until it has its alias, which the kernel does not set when it creates one. An interface with this name was
// left by a process that ended between the two, and is deleted.
func unmarked(v *netlink.Vlan) string { return fmt.Sprintf("kiln%x.%x", v.ParentIndex, v.VlanId) }

// createVLAN creates the interface of a request if it is missing and Request.CreateVLAN is set. It is idempotent.
func createVLAN(bridge string, q providerbridge.Request) error {
	parentName, id, is := vlanOf(q.Interface)
	if !q.CreateVLAN || !is {
		return nil
	}
	link, err := kernel.Link(q.Interface)
	if err != nil || link != nil {
		return err
	}
	parent, err := kernel.Link(parentName)
	if err != nil || parent == nil { // the missing interface is reported
		return err
	}
	made := &netlink.Vlan{LinkAttrs: netlink.NewLinkAttrs(), VlanId: id}
	made.ParentIndex = parent.Attrs().Index
	made.Name = unmarked(made)
	if err := netlink.LinkAdd(made); err != nil {
		return fmt.Errorf("create VLAN interface %s: %w", q.Interface, err)
	}
	if err := netlink.LinkSetAlias(made, createdFor(bridge)); err != nil {
		return fmt.Errorf("mark VLAN interface %s: %w", q.Interface, err)
	}
	if err := netlink.LinkSetName(made, q.Interface); err != nil {
		return fmt.Errorf("name VLAN interface %s: %w", q.Interface, err)
	}
	if err := netlink.LinkSetUp(made); err != nil {
		return fmt.Errorf("set %s up: %w", q.Interface, err)
	}
	return nil
}

// deleteCreated deletes the VLAN interfaces that were created for bridges, except those to keep. One whose creation was interrupted has no bridge.
func deleteCreated(keep func(bridge, name string) bool) error {
	links, err := kernel.Whole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		v, is := l.(*netlink.Vlan)
		if !is {
			continue
		}
		bridge, created := creator(l.Attrs().Alias)
		if !created && l.Attrs().Name != unmarked(v) || keep(bridge, l.Attrs().Name) {
			continue
		}
		if err := netlink.LinkDel(l); err != nil {
			errs = append(errs, fmt.Errorf("delete VLAN interface %s: %w", l.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}
