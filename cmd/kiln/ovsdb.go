// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/ovsdb"
)

func newOVSDBCommand() *cobra.Command {
	o := ovsdb.Options{RunDir: "/run/ovn", PreviousDataDir: os.Getenv("KILN_PREVIOUS_DATA_DIRECTORY"), Programs: ovsdb.DefaultPrograms}
	var db string
	command := &cobra.Command{
		Use:   "ovsdb",
		Short: "Run one member of the northbound or southbound database",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return supervisor.ReportFailure(runOVSDB(command.Context(), db, o))
		},
	}
	command.Flags().StringVar(&db, "db", "", "the database: nb or sb")
	command.Flags().StringVar(&o.DataDir, "data-dir", "/etc/ovn", "directory of the database file")
	command.Flags().StringVar(&o.TLSDir, "tls-dir", "/etc/kiln/tls", "directory of tls.crt, tls.key, ca.crt and admin-ca.crt")
	return command
}

func runOVSDB(ctx context.Context, db string, o ovsdb.Options) error {
	var err error
	if o.Database, err = ovsdb.ByFlag(db); err != nil {
		return err
	}
	o.LogLevel = &supervisor.LogLevel{}
	healthPort := o.Database.AdminPort + adminapi.HealthOffset
	s, err := surround(ctx, component{
		verbosity: centralVerbosity, daemons: func(l v1alpha1.Logging) { o.LogLevel.Set(l.Databases) }, profilingPort: healthPort + profilingOffset,
	})
	if err != nil {
		return err
	}
	if o.Address, err = netip.ParseAddr(s.address); err != nil {
		return fmt.Errorf("POD_IP: %w", err)
	}
	leads, label := s.leads(o.Database.LeaderLabel)
	o.Node, o.Clusters, o.Leads, o.Log = s.node, s.clusters, leads, ctrl.Log
	o.HealthAddress = supervisor.HealthAddress(healthPort)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return ovsdb.Run(ctx, o) })
	group.Go(func() error { return label(ctx) })
	return group.Wait()
}
