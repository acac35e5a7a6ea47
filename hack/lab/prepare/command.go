// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/machine"
	"github.com/kiln-net/kiln/hack/lab/progress"
)

// Command returns the command `prepare`. Its program must have the commands of MachineCommands.
func Command(report *progress.Reporter) *cobra.Command {
	race, image, kernel, onlyLab := false, false, false, false
	cmd := &cobra.Command{
		Use:   "prepare",
		Short: "Build programs, root file systems and images into the cache, where they are missing or out of date",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("root file systems need root: run it as root")
			}
			var extra []string
			if race {
				extra = append(extra, ForRace)
			}
			if image {
				extra = append(extra, ForImage)
			}
			o, err := NewOptions(report, extra...)
			switch {
			case err != nil:
			case image:
				err = HostPackages(cmd.Context(), o)
			case onlyLab:
				err = Lab(cmd.Context(), o, false)
			default:
				err = Run(cmd.Context(), o)
			}
			if err != nil || !kernel {
				return err
			}
			return Kernel(cmd.Context(), o)
		},
	}
	cmd.Flags().BoolVar(&onlyLab, "lab", onlyLab, "build only what `lab up` needs, as `lab up` does: nothing for tests")
	cmd.Flags().BoolVar(&kernel, "kernel", kernel, "build the kernel of `up --kernel uml` as well, also while a lab is up")
	cmd.Flags().BoolVar(&race, "race", race, "install the packages that the race detector needs as well")
	cmd.Flags().BoolVar(&image, "image", image, "install the packages that `make test-image` needs, and do nothing else")
	return cmd
}

// MachineCommands returns the hidden commands that run as processes of machines. Users do not call them.
func MachineCommands() []*cobra.Command {
	return []*cobra.Command{
		{
			Use: machine.InitCommand, Hidden: true, Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error { return machine.Init(args[0]) },
		},
		{
			Use: machine.SuperviseCommand, Hidden: true, Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return machine.Supervise(cmd.Context(), args[0]) },
		},
	}
}

// NewOptions returns the Options of this process.
func NewOptions(report *progress.Reporter, extra ...string) (o Options, err error) {
	o = Options{Report: report, Extra: extra}
	if o.Cache, err = cache.Open(); err != nil {
		return o, err
	}
	if o.Source, err = Source(); err != nil {
		return o, err
	}
	if o.Lab, err = os.Executable(); err != nil {
		return o, fmt.Errorf("find this program: %w", err)
	}
	return o, nil
}
