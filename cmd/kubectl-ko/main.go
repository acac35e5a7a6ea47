// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// kubectl-ko is a kubectl plugin: `kubectl ko`.
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
	utilexec "k8s.io/client-go/util/exec"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kiln-net/kiln/internal/kubectlko"
)

// completer is the name under which kubectl runs a plugin's completion: a link to this program.
const completer = "kubectl_complete-ko"

func main() {
	log.SetLogger(logr.Discard()) // avoids the Kubernetes client's warning about a missing logger
	// Also the end of the terminal ends a command in the usual way: it deletes its pods.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	command := kubectlko.NewCommand(os.Stdin, os.Stdout, os.Stderr)
	if filepath.Base(os.Args[0]) == completer {
		command.SetArgs(append([]string{cobra.ShellCompRequestCmd}, os.Args[1:]...))
	}
	err := command.ExecuteContext(ctx)
	if err == nil {
		return
	}
	if status := (utilexec.ExitError)(nil); errors.As(err, &status) && status.Exited() {
		os.Exit(status.ExitStatus()) // the exit status of a program in a pod, which has printed its own error
	}
	fmt.Fprintln(os.Stderr, "error:", kubectlko.Printable(err.Error())) // parts can be of pods and objects
	os.Exit(1)
}
