// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kiln-net/kiln/agent"
	"github.com/kiln-net/kiln/internal/version"
	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/ovs"
	"github.com/kiln-net/kiln/supervisor/ovsdb"
)

// cleanUpOptions locate Kiln's state on the node.
type cleanUpOptions struct {
	agent agent.Options
	ovs   ovs.Options
	// dataDirs are the directories whose database files are deleted; none to keep them.
	dataDirs []string
	health   string
}

func newCleanUpCommand() *cobra.Command {
	o := cleanUpOptions{
		ovs: ovs.Options{
			RunDir: "/run/openvswitch", OVNRunDir: "/run/ovn", ConfigDir: "/etc/openvswitch", Programs: ovs.DefaultPrograms,
		},
		health: supervisor.HealthAddress(10673),
	}
	command := &cobra.Command{
		Use:   "clean-up",
		Short: "Take everything from a node that Kiln has made on it",
		Long: "Take everything from a node that Kiln has made on it.\n\n" +
			"No other process of Kiln may run on the node. Once it is clean /readyz says so, and the process waits to be stopped; when something\n" +
			"cannot be taken away the process ends, saying what. It may be run any number of times.",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if _, err := setLogger(); err != nil {
				return err
			}
			o.ovs.Log = ctrl.Log
			return supervisor.ReportFailure(runCleanUp(command.Context(), o))
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.agent.CNIBinDir, "cni-bin-dir", "/opt/cni/bin", "where the container runtime looks for CNI plugins")
	flags.StringVar(&o.agent.CNIConfDir, "cni-conf-dir", "/etc/cni/net.d", "where the container runtime looks for network configurations")
	toolingFlag(flags, &o.agent)
	flags.StringArrayVar(&o.dataDirs, "data-dir", nil, "directory whose database files are deleted too; may be repeated")
	return command
}

func runCleanUp(ctx context.Context, o cleanUpOptions) error {
	if err := cleanUp(ctx, o); err != nil {
		return fmt.Errorf("the node is not clean yet: %w", err)
	}
	ctrl.Log.Info("the node is clean")
	return supervisor.ServeHealth(ctx, o.health, func(context.Context) error { return nil }, version.Own, nil)
}

// cleanUp removes pods' network first and the node's own network afterwards. A failed step does not prevent the later ones.
func cleanUp(ctx context.Context, o cleanUpOptions) error {
	err := errors.Join(agent.CleanUp(ctx, o.agent), ovs.CleanUp(ctx, o.ovs))
	for _, directory := range o.dataDirs {
		err = errors.Join(err, ovsdb.RemoveData(directory))
	}
	return err
}
