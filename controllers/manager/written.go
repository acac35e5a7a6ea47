// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"context"
	"time"

	"github.com/kiln-net/kiln/internal/podlabel"
)

// writtenPause is the delay before each round of reconciles after a start. In this time subscribers of the northbound engine enqueue
// keys.
const writtenPause = time.Second

// reportWritten labels the pod with the northbound database's cluster ID after all objects that exist at the start have been reconciled.
// Later changes, and objects that keep failing, do not delay the label. After a recovery ovn-northd waits for it, because ovn-northd deletes the southbound rows of
// missing northbound rows.
func (p *process) reportWritten(ctx context.Context, clusterID string) error {
	failing, err := p.shared.Gate.WaitWritten(ctx, writtenPause)
	if err != nil || clusterID == "" {
		return nil
	}
	label := podlabel.Label{Pods: p.clients.CoreV1().Pods(p.options.Own.Namespace), Pod: p.options.Own.Pod, Key: podlabel.NorthboundWritten, Log: p.log}
	label.Put(ctx, clusterID)
	p.log.Info("the objects of the start are written", "clusterID", clusterID, "failing", failing)
	return nil
}
