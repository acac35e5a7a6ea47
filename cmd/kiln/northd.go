// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kiln-net/kiln/internal/supervisor"
	"github.com/kiln-net/kiln/internal/supervisor/northd"
	"github.com/kiln-net/kiln/internal/supervisor/podlabel"
)

func init() { commands = append(commands, newNorthdCommand) }

func newNorthdCommand() *cobra.Command {
	o := northd.Options{RunDir: "/run/ovn", Program: northd.DefaultProgram, HealthAddress: ":10671"}
	command := &cobra.Command{
		Use:   "northd",
		Short: "Run ovn-northd",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return supervisor.ReportFailure(runNorthd(command.Context(), o))
		},
	}
	command.Flags().StringVar(&o.TLSDir, "tls-dir", "/etc/kiln/tls", "directory of tls.crt, tls.key and ca.crt")
	return command
}

func runNorthd(ctx context.Context, o northd.Options) error {
	s, err := surround(ctx)
	if err != nil {
		return err
	}
	leads, label := s.leads(podlabel.NorthdLeader)
	writes := make(chan string)
	o.Clusters, o.Leads, o.Writes, o.Log = s.clusters, leads, writes, ctrl.Log
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return northd.Run(ctx, o) })
	group.Go(func() error { return label(ctx) })
	group.Go(func() error {
		written := podlabel.Label{Pods: s.client.CoreV1().Pods(s.namespace), Pod: s.pod, Key: podlabel.SouthboundWritten, Log: ctrl.Log}
		for {
			select {
			case id := <-writes:
				written.Put(ctx, id)
			case <-ctx.Done():
				return nil
			}
		}
	})
	return group.Wait()
}
