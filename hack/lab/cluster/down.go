// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"github.com/kiln-net/kiln/hack/lab/fabric"
	"github.com/kiln-net/kiln/hack/lab/machine"
	"github.com/kiln-net/kiln/hack/lab/progress"
)

// Down takes the lab down and removes everything except its logs. It works from the resources it finds, so it also cleans up after
// a failed Up or a lost state directory.
func Down(ctx context.Context, dir string, report *progress.Reporter) error {
	d := stateDir(dir)
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	s, there, err := d.load()
	if err != nil {
		return err
	}
	if left, err := fabric.Leftovers(); err == nil && !there && len(left) == 0 {
		report.Say("no lab is up in %s", dir)
		return nil
	}
	if err := report.Step("stop the machines", func() error { return stop(ctx, s) }); err != nil {
		return err
	}
	return report.Step("remove the network and the machines' files", func() error {
		return errors.Join(fabric.Remove(), removeCgroups(), restoreTunables(s.Tunables), d.clear())
	})
}

// stop kills every machine, and then all other processes in the lab's network namespaces, such as commands that a user started
// there.
func stop(ctx context.Context, s state) error {
	group, _ := errgroup.WithContext(ctx)
	for name, init := range s.Machines {
		group.Go(func() error {
			if err := init.Kill(); err != nil {
				return fmt.Errorf("stop machine %s: %w", name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	names, err := fabric.Netnses()
	if err != nil {
		return err
	}
	paths := make([]string, 0, len(names))
	for _, name := range names {
		paths = append(paths, fabric.NetnsPath(name))
	}
	others, err := machine.InNetns(paths...)
	if err != nil {
		return err
	}
	for _, p := range others {
		if err := p.Kill(); err != nil {
			return fmt.Errorf("stop a process in the lab's network: %w", err)
		}
	}
	return nil
}

// clear removes the lab's files. The logs stay until the next lab comes up.
func (d stateDir) clear() error {
	for _, name := range []string{"machines", "pki", "bin", "kubeconfig", "lab.json"} { // the state is last, so that a failed down can be repeated
		if err := os.RemoveAll(filepath.Join(string(d), name)); err != nil {
			return fmt.Errorf("remove the lab's files: %w", err)
		}
	}
	return nil
}
