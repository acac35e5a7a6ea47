// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/vishvananda/netlink"

	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/hack/lab/fabric"
	"github.com/kiln-net/kiln/hack/lab/fresh"
	"github.com/kiln-net/kiln/hack/lab/guest"
	"github.com/kiln-net/kiln/hack/lab/machine"
	"github.com/kiln-net/kiln/hack/lab/prepare"
	"github.com/kiln-net/kiln/hack/lab/topology"
)

// Kernels of a lab, which have Open vSwitch's datapath; without one, nodes use the datapath in userspace.
const (
	hostKernel = "host"
	umlKernel  = "uml"
)

func (l *lab) up() *cobra.Command {
	controlPlanes, workers, kubeProxy, ipv6First, singleNIC, kernel := 1, 2, false, false, false, ""
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the cluster up; its nodes wait for a network",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			plan, err := topology.New(controlPlanes, workers)
			if err != nil {
				return err
			}
			plan.KubeProxy, plan.IPv6First, plan.SingleNIC, plan.KernelDatapath = kubeProxy, ipv6First, singleNIC, kernel != ""
			dir, err := l.fill(cmd.Context(), kubeProxy)
			if err != nil {
				return err
			}
			there, err := l.guest().Exists()
			if err != nil {
				return err
			}
			if there && kernel != umlKernel {
				return errors.New("a lab with a kernel of its own is up: take it down first, or use --kernel " + umlKernel)
			}
			switch kernel {
			case "":
			case hostKernel:
				if err := ovsInKernel(); err != nil {
					return err
				}
			case umlKernel:
				return l.upInGuest(cmd, dir)
			default:
				return fmt.Errorf("no kernel %q: %s and %s have Open vSwitch's datapath, and without --kernel nodes use the one in userspace",
					kernel, hostKernel, umlKernel)
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
	cmd.Flags().BoolVar(&ipv6First, "ipv6-first", ipv6First, "make IPv6 the primary family of Services and nodes; clusters with IPv6 pods only need it")
	cmd.Flags().BoolVar(&singleNIC, "single-nic", singleNIC, "give nodes one interface, for management, tunnels and the provider network")
	cmd.Flags().StringVar(&kernel, "kernel", kernel,
		"kernel with Open vSwitch's datapath: host, or uml (a kernel in User Mode Linux, built for it); by default nodes use the datapath in userspace")
	return cmd
}

// upInGuest starts the lab's guest and brings the cluster up there.
func (l *lab) upInGuest(cmd *cobra.Command, dir cache.Dir) error {
	o, err := prepare.NewOptions(l.report)
	if err != nil {
		return err
	}
	if left, err := fabric.Leftovers(); err != nil || len(left) > 0 {
		return errors.Join(err, fmt.Errorf("a lab without a kernel of its own is up: take it down first (%v)", left))
	}
	if err := prepare.Kernel(cmd.Context(), o); err != nil {
		return err
	}
	if err := l.report.Step("start the lab's kernel (User Mode Linux)", func() error {
		return l.guest().Start(cmd.Context(), dir, filepath.Join(o.Source, "_output"))
	}); err != nil {
		return err
	}
	args := []string{l.guest().Program(), "up", "--kernel=" + hostKernel}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "kernel" && f.Name != "state" {
			args = append(args, "--"+f.Name+"="+f.Value.String())
		}
	})
	return l.inGuest(cmd.Context(), args...)
}

// inGuest runs a command in the lab's guest.
func (l *lab) inGuest(ctx context.Context, args ...string) error {
	err := l.guest().Run(ctx, machine.Command{Args: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
	var exit *guest.ExitError
	if errors.As(err, &exit) {
		return exitStatus(exit.Status)
	}
	return err
}

// ovsInKernel returns an error if the kernel has no Open vSwitch datapath. The query makes the kernel load the module, if it is installed.
func ovsInKernel() error {
	if _, err := netlink.GenlFamilyGet("ovs_datapath"); err != nil {
		return fmt.Errorf("this kernel has no Open vSwitch datapath (%w): load the modules openvswitch and geneve, or use --kernel %s", err, umlKernel)
	}
	return nil
}

func (l *lab) down() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Take the cluster down and remove everything of it but its logs",
		Args:  cobra.NoArgs,
		RunE: asRoot(func(cmd *cobra.Command, _ []string) error {
			there, err := l.guest().Exists()
			if err != nil {
				return err
			}
			if there {
				err = l.report.Step("stop the lab's kernel; the lab's logs are in "+filepath.Join(l.state, "logs"), func() error {
					return errors.Join(l.guest().SaveLogs(cmd.Context(), filepath.Join(l.state, "logs")), l.guest().Stop(cmd.Context()))
				})
			}
			return errors.Join(err, cluster.Down(cmd.Context(), l.state, l.report))
		}),
	}
}

func (l *lab) run() *cobra.Command {
	dir := ""
	cmd := &cobra.Command{
		Use:   "run COMMAND [ARGUMENT...]",
		Short: "Run a command where the lab is: on this host, or in the lab's own kernel, where all programs of this host are too",
		Args:  cobra.MinimumNArgs(1),
		RunE: asRoot(func(cmd *cobra.Command, args []string) error {
			if err := os.Chdir(cmp.Or(dir, ".")); err != nil {
				return fmt.Errorf("change the working directory: %w", err)
			}
			there, err := l.guest().Exists()
			if err != nil {
				return err
			}
			if there {
				return l.inGuest(cmd.Context(), args...)
			}
			c := exec.CommandContext(cmd.Context(), args[0], args[1:]...)
			c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
			c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
			return asExitStatus(c.Run())
		}),
	}
	cmd.Flags().StringVar(&dir, "dir", dir, "working directory")
	cmd.Flags().SetInterspersed(false)
	return cmd
}

// asExitStatus makes the exit status of a command this program's.
func asExitStatus(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exitStatus(exit.ExitCode())
	}
	return err
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
			return asExitStatus(err)
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

func (l *lab) routerRoot() *cobra.Command {
	return &cobra.Command{
		Use:   "router-root",
		Short: "Make the root file system with the BGP daemons of the router, for `make bgp`",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := needRoot(); err != nil {
				return err
			}
			o, err := prepare.NewOptions(l.report)
			if err != nil {
				return err
			}
			return prepare.RouterRootfs(cmd.Context(), o)
		},
	}
}

func (l *lab) fresh() *cobra.Command {
	suite, goCaches := "bookworm", false
	cmd := &cobra.Command{
		Use:   "fresh [flags] COMMAND",
		Short: "Run a shell command, such as 'make test', in a clone of this repository on a minimal Debian with nothing prepared",
		Args:  cobra.ExactArgs(1),
		RunE: asRoot(func(cmd *cobra.Command, args []string) error {
			o, err := prepare.NewOptions(l.report)
			if err != nil {
				return err
			}
			err = fresh.Run(cmd.Context(), fresh.Options{
				Cache: o.Cache, Source: o.Source, Report: l.report, Lab: o.Lab, Suite: suite, Dir: l.state + "-fresh-" + suite, GoCaches: goCaches,
				Command: args[0], Out: os.Stdout,
			})
			return asExitStatus(err)
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

// withCluster passes the running cluster to f. If the lab has a kernel of its own, it runs the same command there.
func (l *lab) withCluster(f func(*cobra.Command, *cluster.Cluster, []string) error) run {
	return func(cmd *cobra.Command, args []string) error {
		there, err := l.guest().Exists()
		if err != nil {
			return err
		}
		if there {
			return l.inGuest(cmd.Context(), append([]string{l.guest().Program(), cmd.Name(), "--"}, args...)...)
		}
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

// guestCommands returns the hidden subcommands that run as processes of the guest. Users do not call them.
func guestCommands() []*cobra.Command {
	return []*cobra.Command{
		busy(),
		{
			Use: guest.InitCommand, Hidden: true, Args: cobra.ExactArgs(1),
			Run: func(_ *cobra.Command, args []string) { guest.Init(args[0]) },
		},
		{
			Use: guest.ServeCommand, Hidden: true, Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error { return guest.Serve(args[0]) },
		},
		{
			Use: guest.MonitorCommand, Hidden: true, Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error { return guest.Monitor(cmd.Context(), args[0]) },
		},
	}
}
