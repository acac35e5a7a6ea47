// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/knftables"

	"github.com/kiln-net/kiln/agent/host"
	"github.com/kiln-net/kiln/agent/probes"
	"github.com/kiln-net/kiln/agent/services"
)

// CleanUp takes everything from the node that agents have made on it, but what is Open vSwitch's. No agent may run meanwhile. It may be
// interrupted after any step and called again.
func CleanUp(ctx context.Context, o Options) error {
	nft, err := knftables.New(knftables.InetFamily, services.Table)
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	// Services last: pods' network goes before that of the node itself.
	return errors.Join(host.CleanUp(ctx, host.Plugin{BinDir: o.CNIBinDir, ConfDir: o.CNIConfDir}), probes.Remove(), services.Remove(ctx, nft))
}
