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

	"github.com/go-logr/logr"
	utilexec "k8s.io/client-go/util/exec"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/kiln-net/kiln/internal/kubectlko"
)

func main() {
	log.SetLogger(logr.Discard()) // of the Kubernetes client, which says that it has none
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
