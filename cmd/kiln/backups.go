// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/ovsdb"
)

func newBackupsCommand() *cobra.Command {
	o := ovsdb.ArchiveOptions{
		Database: ovsdb.Northbound, Tool: ovsdb.DefaultPrograms.Tool,
		HealthAddress: supervisor.HealthAddress(adminapi.PortArchive + adminapi.HealthOffset),
	}
	command := &cobra.Command{
		Use:   "backups",
		Short: "Keep backups of the northbound database on a PersistentVolumeClaim",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return supervisor.ReportFailure(runBackups(command.Context(), o))
		},
	}
	command.Flags().StringVar(&o.Directory, "dir", "/backups", "where the claim is mounted")
	command.Flags().StringVar(&o.TLSDir, "tls-dir", "/etc/kiln/tls", "directory of tls.crt, tls.key, ca.crt and admin-ca.crt")
	return command
}

func runBackups(ctx context.Context, o ovsdb.ArchiveOptions) error {
	s, err := surround(ctx, component{verbosity: centralVerbosity, profilingPort: adminapi.PortArchive + adminapi.HealthOffset + profilingOffset})
	if err != nil {
		return err
	}
	o.Clusters, o.Log = s.clusters, ctrl.Log
	return ovsdb.RunArchive(ctx, o)
}
