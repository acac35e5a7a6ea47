// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kiln-net/kiln/hack/lab/images"
	"github.com/kiln-net/kiln/hack/lab/progress"
)

// Load brings the images of a docker-archive to every node, all at once. Layers that a node has are not moved, and an archive
// that is there already does nothing.
func (c *Cluster) Load(ctx context.Context, archive string, report *progress.Reporter) error {
	found, err := images.FromArchive(archive)
	if err != nil {
		return err
	}
	return c.LoadImages(ctx, "load "+archive, found, report)
}

// LoadImages is Load for images that are not in an archive. Title is what a person reads while it lasts.
func (c *Cluster) LoadImages(ctx context.Context, title string, found []*images.Image, report *progress.Reporter) error {
	for _, img := range found {
		report.Say("image %s, %s", img.Reference, img.Digest())
	}
	return report.Step(title, func() error {
		group, ctx := errgroup.WithContext(ctx)
		for _, n := range c.Nodes() {
			group.Go(func() error {
				start := time.Now()
				store := images.Store{Machine: c.state.Machines[n.Name], Dir: c.dir.containerd(n.Name)}
				count, err := store.Import(ctx, found)
				if err != nil {
					return fmt.Errorf("load into %s: %w (log: %s)", n.Name, err, c.dir.log(n.Name, "containerd"))
				}
				took := time.Since(start).Round(time.Millisecond)
				if count == 0 {
					report.Say("      %s has it (%s)", n.Name, took)
				} else {
					report.Say("      %s loaded %d (%s)", n.Name, count, took)
				}
				return nil
			})
		}
		return group.Wait()
	})
}
