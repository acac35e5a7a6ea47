// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

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
)

// kubectl finds the plugin as executable, and runs its completion as completer, which is a link to the same program.
const executable, completer = "kubectl-ko", "kubectl_complete-ko"

// Named reports whether a program with this path or name (os.Args[0]) is the plugin.
func Named(program string) bool {
	base := filepath.Base(program)
	return base == executable || base == completer
}

// Main runs the plugin with the arguments, files and signals of the process. It exits the process if the command fails.
func Main() {
	log.SetLogger(logr.Discard()) // avoids the Kubernetes client's warning about a missing logger
	// Also the end of the terminal ends a command in the usual way: it deletes its pods.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	command := NewCommand(os.Stdin, os.Stdout, os.Stderr)
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
	fmt.Fprintln(os.Stderr, "error:", printable(err.Error())) // parts can be of pods and objects
	os.Exit(1)
}
