// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/agent/sandbox"
)

// CleanUp takes from the node what this package and the sandboxes have made on it: the network configuration and the plugin first, so that
// no pod is attached any more, then links to pods, rules, routes, addresses and the nftables table. (Package probes removes its own rules.) It may
// be interrupted after any step and called again. Kernel settings stay: their previous values are not recorded, and other programs may need the present ones.
func CleanUp(ctx context.Context, p Plugin) error {
	if err := p.Remove(); err != nil {
		return err
	}
	_, externalErr := setExternal(nil, nil)
	_, claimErr := setClaims(nil)
	_, routeErr := setRoutes(nil, nil)
	return errors.Join(
		externalErr, claimErr, routeErr,
		sandbox.RemoveAll(),
		removeTable(ctx),
	)
}

// Remove takes the network configuration away, then the plugin. What else Install copies is common to all CNI plugins and stays.
func (p *Plugin) Remove() error {
	for _, path := range []string{filepath.Join(p.ConfDir, ConfigName), filepath.Join(p.BinDir, NetworkName)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the CNI plugin: %w", err)
		}
	}
	return errors.Join(removeUnfinished(p.ConfDir), removeUnfinished(p.BinDir))
}

func removeTable(ctx context.Context) error {
	nft, err := knftables.New(knftables.InetFamily, NATTable)
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{}) // so that there is one to delete
	tx.Delete(&knftables.Table{})
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("delete nftables table %s: %w", NATTable, err)
	}
	return nil
}
