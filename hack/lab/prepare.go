// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/guest"
	"github.com/kiln-net/kiln/hack/lab/prepare"
)

func (l *lab) prepare() *cobra.Command {
	race, image, kernel := false, false, false
	cmd := &cobra.Command{
		Use:   "prepare",
		Short: "Build programs, root file systems and images into the cache, where they are missing or out of date",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var extra []string
			if race {
				extra = append(extra, prepare.ForRace)
			}
			if image {
				return l.installPackages(cmd.Context(), prepare.ForImage)
			}
			if _, err := l.fill(cmd.Context(), extra...); err != nil || !kernel {
				return err
			}
			o, err := l.preparation()
			if err != nil {
				return err
			}
			return prepare.Kernel(cmd.Context(), o)
		},
	}
	cmd.Flags().BoolVar(&kernel, "kernel", kernel, "build the kernel of `up --kernel uml` as well, also while a lab is up")
	cmd.Flags().BoolVar(&race, "race", race, "install the packages that the race detector needs as well")
	cmd.Flags().BoolVar(&image, "image", image, "install the packages that `make test-image` needs, and do nothing else")
	return cmd
}

// installPackages installs host packages only.
func (l *lab) installPackages(ctx context.Context, extra ...string) error {
	if err := needRoot(); err != nil {
		return err
	}
	o, err := l.preparation(extra...)
	if err != nil {
		return err
	}
	return prepare.HostPackages(ctx, o)
}

// fill prepares the cache and returns it.
func (l *lab) fill(ctx context.Context, extra ...string) (cache.Dir, error) {
	if err := needRoot(); err != nil {
		return "", err
	}
	if os.Getenv(guest.InGuest) != "" {
		return cache.Open() // the host has filled it
	}
	o, err := l.preparation(extra...)
	if err != nil {
		return "", err
	}
	return o.Cache, prepare.Run(ctx, o)
}

func (l *lab) preparation(extra ...string) (o prepare.Options, err error) {
	o = prepare.Options{Report: l.report, Extra: extra}
	if o.Cache, err = cache.Open(); err != nil {
		return o, err
	}
	if o.Source, err = prepare.Source(); err != nil {
		return o, err
	}
	if o.Lab, err = os.Executable(); err != nil {
		return o, fmt.Errorf("find this program: %w", err)
	}
	return o, nil
}
