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

// Load brings the images of a docker-archive to all nodes in parallel. It skips layers that a node has already, and does nothing on
// a node that has the whole image.
func (c *Cluster) Load(ctx context.Context, archive string, report *progress.Reporter) error {
	found, err := images.FromArchive(archive)
	if err != nil {
		return err
	}
	return c.LoadImages(ctx, "load "+archive, found, report)
}

// LoadImages is Load for images that are not in an archive. Title is the text of the progress report.
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
