// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"sigs.k8s.io/knftables"
)

// Shield is the nftables table, of the netdev family, that drops the packets that arrive at an uplink in the userspace datapath. There is one
// per bridge.
type Shield string

// ShieldOf returns the table for the uplink of a provider network's bridge.
func ShieldOf(bridge string) Shield { return Shield("kiln-uplink-" + bridge) }

// Shielded is what a shield is for.
type Shielded struct {
	// Index is the interface's.
	Index int
	// VLANs lists the VLANs that the node has interfaces for, in the syntax of nft; empty for none.
	VLANs string
}

// ShieldedFor returns what the shield of an interface has to be for.
func ShieldedFor(link netlink.Link) (Shielded, error) {
	onTop, err := VLANs(link)
	if err != nil {
		return Shielded{}, err
	}
	ids := make([]string, 0, len(onTop))
	for _, v := range onTop {
		ids = append(ids, strconv.Itoa(v.VlanId))
	}
	slices.Sort(ids)
	return Shielded{Index: link.Attrs().Index, VLANs: strings.Join(ids, ", ")}, nil
}

// Raise drops packets that arrive at the uplink before they reach the kernel's own stack. In the userspace datapath
// ovs-vswitchd reads the uplink through a packet socket; without the shield the kernel would also answer the packets to the bridge's
// addresses, so that each gets two answers. Packet sockets receive packets before the ingress hook. Packets of
// the node's own VLANs pass.
func (s Shield) Raise(ctx context.Context, uplink string, of Shielded) error {
	nft, err := knftables.New(knftables.NetDevFamily, string(s))
	if err != nil {
		return fmt.Errorf("shield interface %s from the kernel's stack: %w", uplink, err)
	}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{}) // a chain's device cannot be changed
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{
		Name:     "ingress",
		Type:     new(knftables.FilterType),
		Hook:     new(knftables.IngressHook),
		Device:   &uplink,
		Priority: new(knftables.BaseChainPriority("0")),
	})
	if of.VLANs != "" {
		tx.Add(&knftables.Rule{Chain: "ingress", Rule: "vlan id { " + of.VLANs + " } accept"})
	}
	tx.Add(&knftables.Rule{Chain: "ingress", Rule: "drop"})
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("shield interface %s from the kernel's stack: %w", uplink, err)
	}
	return nil
}

// Drop removes the table. It is idempotent.
func (s Shield) Drop(ctx context.Context) error {
	nft, err := knftables.New(knftables.NetDevFamily, string(s))
	if err != nil {
		return fmt.Errorf("remove the shield of the former uplink: %w", err)
	}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Delete(&knftables.Table{})
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("remove the shield of the former uplink: %w", err)
	}
	return nil
}
