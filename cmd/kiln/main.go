// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// kiln is the program of all long-running processes of Kiln: one binary with a subcommand per process, so that an image contains only one
// copy of the Kubernetes client. Under the name kubectl-ko it is the kubectl plugin.
package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kiln-net/kiln/internal/kubectlko"
)

func main() {
	if kubectlko.Named(os.Args[0]) {
		kubectlko.Main()
		return
	}
	root := &cobra.Command{
		Use:           "kiln",
		Short:         "Runs OVN as the network of a Kubernetes cluster",
		SilenceUsage:  true,
		SilenceErrors: false,
	}
	root.AddCommand(
		newOperatorCommand(), newControllerCommand(), newAgentCommand(), // for the cluster, and for a node
		newOVSDBCommand(), newNorthdCommand(), newOVSCommand(), // next to the daemons of OVN and Open vSwitch
		newBackupsCommand(), newMonitorCommand(), newCleanUpCommand(), newHoldImageCommand(), newPingerCommand(), newSpeakerCommand(), newNetprobeCommand(),
		newVersionCommand(),
	)
	if err := root.ExecuteContext(ctrl.SetupSignalHandler()); err != nil {
		os.Exit(exitCode(err))
	}
}

// exitError is an error that sets the exit code of the process.
type exitError struct {
	error
	code int
}

func exitCode(err error) int {
	var e exitError
	if errors.As(err, &e) {
		return e.code
	}
	return 1
}
