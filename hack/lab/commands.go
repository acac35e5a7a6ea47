// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/hack/lab/fresh"
	"github.com/kiln-net/kiln/hack/lab/machine"
	"github.com/kiln-net/kiln/hack/lab/prepare"
	"github.com/kiln-net/kiln/hack/lab/topology"
)

func (l *lab) prepare() *cobra.Command {
	race := false
	cmd := &cobra.Command{
		Use:   "prepare",
		Short: "Build programs, root file systems and images into the cache, where they are missing or out of date",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := l.fill(cmd.Context(), race)
			return err
		},
	}
	cmd.Flags().BoolVar(&race, "race", race, "install the packages that the race detector needs as well")
	return cmd
}

// fill prepares the cache and returns it.
func (l *lab) fill(ctx context.Context, race bool) (cache.Dir, error) {
	if err := needRoot(); err != nil {
		return "", err
	}
	o, err := l.preparation(race)
	if err != nil {
		return "", err
	}
	return o.Cache, prepare.Run(ctx, o)
}

func (l *lab) preparation(race bool) (o prepare.Options, err error) {
	o = prepare.Options{Report: l.report, Race: race}
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

func (l *lab) up() *cobra.Command {
	controlPlanes, workers, kubeProxy := 1, 2, false
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the cluster up; its nodes wait for a network",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			plan, err := topology.New(controlPlanes, workers)
			if err != nil {
				return err
			}
			plan.KubeProxy = kubeProxy
			dir, err := l.fill(cmd.Context(), false)
			if err != nil {
				return err
			}
			err = cluster.Up(cmd.Context(), cluster.Options{Dir: l.state, Cache: dir, Topology: plan, Report: l.report})
			if err != nil {
				return err
			}
			return l.withCluster(showStatus)(cmd, nil)
		},
	}
	cmd.Flags().IntVar(&controlPlanes, "control-planes", controlPlanes, "number of control-plane nodes; the first runs the control plane")
	cmd.Flags().IntVar(&workers, "workers", workers, "number of worker nodes")
	cmd.Flags().BoolVar(&kubeProxy, "kube-proxy", kubeProxy, "run kube-proxy on the nodes; otherwise Services are the network's business")
	return cmd
}

func (l *lab) down() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Take the cluster down and remove everything of it but its logs",
		Args:  cobra.NoArgs,
		RunE: asRoot(func(cmd *cobra.Command, _ []string) error {
			return cluster.Down(cmd.Context(), l.state, l.report)
		}),
	}
}

func (l *lab) status() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the machines and the nodes",
		Args:  cobra.NoArgs,
		RunE:  l.withCluster(showStatus),
	}
}

func (l *lab) kubeconfig() *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of an administrator's kubeconfig",
		Args:  cobra.NoArgs,
		RunE: l.withCluster(func(cmd *cobra.Command, c *cluster.Cluster, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), c.Kubeconfig())
			return err
		}),
	}
}

func (l *lab) exec() *cobra.Command {
	return &cobra.Command{
		Use:   "exec MACHINE -- COMMAND [ARGUMENT...]",
		Short: "Run a command on a node, on the router or on the outside host",
		Args:  cobra.MinimumNArgs(2),
		RunE: asRoot(l.withCluster(func(cmd *cobra.Command, c *cluster.Cluster, args []string) error {
			err := c.Exec(cmd.Context(), args[0], machine.Command{
				Args: args[1:], Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
			})
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.ExitCode() > 0 {
				return exitStatus(exit.ExitCode())
			}
			return err
		})),
	}
}

func (l *lab) load() *cobra.Command {
	return &cobra.Command{
		Use:   "load ARCHIVE",
		Short: "Bring the images of a docker-archive to every node",
		Args:  cobra.ExactArgs(1),
		RunE: asRoot(l.withCluster(func(cmd *cobra.Command, c *cluster.Cluster, args []string) error {
			return c.Load(cmd.Context(), args[0], l.report)
		})),
	}
}

func (l *lab) fresh() *cobra.Command {
	suite, goCaches := "bookworm", false
	cmd := &cobra.Command{
		Use:   "fresh [flags] COMMAND",
		Short: "Run a shell command, such as 'make test', in a clone of this repository on a minimal Debian with nothing prepared",
		Args:  cobra.ExactArgs(1),
		RunE: asRoot(func(cmd *cobra.Command, args []string) error {
			o, err := l.preparation(false)
			if err != nil {
				return err
			}
			err = fresh.Run(cmd.Context(), fresh.Options{
				Cache: o.Cache, Source: o.Source, Report: l.report, Lab: o.Lab, Suite: suite, Dir: l.state + "-fresh-" + suite, GoCaches: goCaches,
				Command: args[0], Out: os.Stdout,
			})
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.ExitCode() > 0 {
				return exitStatus(exit.ExitCode())
			}
			return err
		}),
	}
	cmd.Flags().StringVar(&suite, "suite", suite, "Debian release: bookworm (12) or trixie (13)")
	cmd.Flags().BoolVar(&goCaches, "go-caches", goCaches, "share the host's Go module and build caches with the machine")
	return cmd
}

// run is the function of a command.
type run = func(cmd *cobra.Command, args []string) error

// asRoot wraps a command so that it fails when the user is not root.
func asRoot(f run) run {
	return func(cmd *cobra.Command, args []string) error {
		if err := needRoot(); err != nil {
			return err
		}
		return f(cmd, args)
	}
}

// withCluster passes the running cluster to f.
func (l *lab) withCluster(f func(*cobra.Command, *cluster.Cluster, []string) error) run {
	return func(cmd *cobra.Command, args []string) error {
		c, err := cluster.Open(l.state)
		if err != nil {
			return err
		}
		return f(cmd, c, args)
	}
}

func showStatus(cmd *cobra.Command, c *cluster.Cluster, _ []string) error {
	return c.Status(cmd.Context(), cmd.OutOrStdout())
}

// machineCommands returns the hidden subcommands that run as a machine's own processes. Users do not call them.
func machineCommands() []*cobra.Command {
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
