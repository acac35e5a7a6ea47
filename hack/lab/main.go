// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command lab runs a real Kubernetes cluster on one Linux machine, without a container engine: nodes are machines made of
// namespaces, on a network of bridges, with an outside world behind a router. See docs/development/lab.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kiln-net/kiln/hack/lab/cluster"
	"github.com/kiln-net/kiln/hack/lab/guest"
	"github.com/kiln-net/kiln/hack/lab/prepare"
	"github.com/kiln-net/kiln/hack/lab/progress"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := newCommand().ExecuteContext(ctx)
	var status exitStatus
	switch {
	case err == nil:
	case errors.As(err, &status):
		os.Exit(int(status))
	default:
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

// exitStatus is the exit status of a command run by exec, which has already printed its own error.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// guest is the directory of the lab's kernel, if it has one of its own.
func (l *lab) guest() guest.Dir { return guest.Dir(filepath.Join(l.state, "guest")) }

// lab holds the settings that the commands share.
type lab struct {
	state  string
	report *progress.Reporter
}

func newCommand() *cobra.Command {
	log.SetLogger(logr.Discard()) // controller-runtime would warn that no logger is set
	l := &lab{report: progress.New(os.Stderr)}
	root := &cobra.Command{
		Use:           "lab",
		Short:         "A real Kubernetes cluster on one Linux machine, waiting for a network",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.PersistentFlags().StringVar(&l.state, "state", cluster.DefaultDir(),
		"directory of the lab's state and logs (environment: KILN_LAB_STATE)")
	root.AddCommand(prepare.Command(l.report), l.up(), l.down(), l.status(), l.kubeconfig(), l.exec(), l.run(), l.load(), l.fresh(), l.routerRoot(), l.suite())
	root.AddCommand(prepare.MachineCommands()...)
	root.AddCommand(guestCommands()...)
	return root
}

func needRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("the lab makes namespaces and mounts: run it as root")
	}
	return nil
}
