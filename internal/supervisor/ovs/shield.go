// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"context"
	"fmt"

	"sigs.k8s.io/knftables"
)

// shieldTable is the nftables table of the shield, in the family netdev.
const shieldTable = "kiln-uplink"

// shield keeps the kernel's own stack from what arrives at the uplink. In the userspace datapath ovs-vswitchd reads the uplink
// through a packet socket, and the kernel would go on to answer the same packets for the addresses of br-phy: each of them twice.
// Packet sockets see packets before the ingress hook does.
func shield(ctx context.Context, uplink string) error {
	nft, err := knftables.New(knftables.NetDevFamily, shieldTable)
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
	tx.Add(&knftables.Rule{Chain: "ingress", Rule: "drop"})
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("shield interface %s from the kernel's stack: %w", uplink, err)
	}
	return nil
}

// unshield removes the shield, if there is one.
func unshield(ctx context.Context) error {
	nft, err := knftables.New(knftables.NetDevFamily, shieldTable)
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
