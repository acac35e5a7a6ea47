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

// CleanUp removes everything that agents have created on the node, except the content of Open vSwitch's database. No agent may run at
// that time. It may be interrupted after any step and called again.
func CleanUp(ctx context.Context, o Options) error {
	nft, err := knftables.New(knftables.InetFamily, services.Table)
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	// Services are removed after the network of pods, so that they do not become unreachable from the node before.
	err = errors.Join(host.CleanUp(ctx, host.Plugin{BinDir: o.CNIBinDir, ConfDir: o.CNIConfDir}), probes.Remove(), services.Remove(ctx, nft))
	if o.ToolingDir != "" {
		tool := host.Tool{Directory: o.ToolingDir}
		err = errors.Join(err, tool.Remove())
	}
	return err
}
