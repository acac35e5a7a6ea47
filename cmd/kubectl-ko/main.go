// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// kubectl-ko is a plugin of kubectl: `kubectl ko`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	utilexec "k8s.io/client-go/util/exec"

	"github.com/kiln-net/kiln/internal/kubectlko"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := kubectlko.NewCommand(os.Stdout, os.Stderr).ExecuteContext(ctx)
	if err == nil {
		return
	}
	if status := (utilexec.ExitError)(nil); errors.As(err, &status) && status.Exited() {
		os.Exit(status.ExitStatus()) // of a program in a pod, which has said itself what is wrong
	}
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}
