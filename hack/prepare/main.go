// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command prepare is `lab prepare` without the rest of the lab: it needs no library of Kubernetes, so that Go compiles it in seconds, before anything
// else of `make prepare` and `make demo`.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/kiln-net/kiln/hack/lab/prepare"
	"github.com/kiln-net/kiln/hack/lab/progress"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cmd := prepare.Command(progress.New(os.Stderr))
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.AddCommand(prepare.MachineCommands()...)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		os.Exit(1) //nolint:gocritic // the deferred stop has nothing left to do
	}
}
