// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"
	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/agent/sandbox"
)

// CleanUp removes from the node everything that this package and package sandbox have created. It starts with the network configuration
// and the plugin, so that pods are no longer attached, and continues with links to pods, rules, routes, addresses and the nftables table.
// (Package probes removes its own rules.) It may be interrupted after any step and called again. Kernel parameters stay: their previous
// values are not recorded, and other programs may need the current ones.
func CleanUp(ctx context.Context, p Plugin) error {
	if err := p.Remove(); err != nil {
		return err
	}
	_, externalErr := setExternal(nil, nil)
	_, claimErr := setClaims(nil)
	_, forwardErr := setForwarded(nil, nil)
	_, routeErr := setRoutes(logr.FromContextOrDiscard(ctx), nil, nil)
	return errors.Join(
		externalErr, claimErr, forwardErr, routeErr,
		sandbox.RemoveAll(),
		removeTable(ctx),
	)
}

// Remove deletes the network configurations of all priorities, then the plugin. The other programs that Install copies may be in use by other CNI plugins
// and stay.
func (p *Plugin) Remove() error {
	if err := p.removeConfigs(""); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(p.BinDir, NetworkName)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the CNI plugin: %w", err)
	}
	return errors.Join(removeUnfinished(p.ConfDir, ""), removeUnfinished(p.BinDir, ""))
}

func removeTable(ctx context.Context) error {
	nft, err := knftables.New(knftables.InetFamily, NATTable)
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{}) // so that the deletion does not fail
	tx.Delete(&knftables.Table{})
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("delete nftables table %s: %w", NATTable, err)
	}
	return nil
}
