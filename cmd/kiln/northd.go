// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kiln-net/kiln/api/v1alpha1"
	"github.com/kiln-net/kiln/internal/podlabel"
	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/adminapi"
	"github.com/kiln-net/kiln/supervisor/northd"
)

// northdHealthPort is the port of /healthz and /readyz.
const northdHealthPort = 10671

func newNorthdCommand() *cobra.Command {
	o := northd.Options{RunDir: "/run/ovn", Program: northd.DefaultProgram, HealthAddress: fmt.Sprintf(":%d", northdHealthPort)}
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
	o.LogLevel = &supervisor.LogLevel{}
	s, err := surround(ctx, component{
		verbosity: centralVerbosity, daemons: func(l v1alpha1.Logging) { o.LogLevel.Set(l.Northd) }, profilingPort: northdHealthPort + profilingOffset,
	})
	if err != nil {
		return err
	}
	o.Node, o.MetricsAddress = s.node, fmt.Sprintf(":%d", adminapi.PortNorthd)
	leads, label := s.leads(podlabel.NorthdLeader)
	writes, runs := make(chan string), make(chan string)
	o.Clusters, o.Leads, o.Writes, o.Runs, o.Log = s.clusters, leads, writes, runs, ctrl.Log
	peers := northd.Peers{Pods: s.client.CoreV1().Pods(s.namespace), Pod: s.pod, Log: ctrl.Log}
	o.Turn = peers.Await
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return northd.Run(ctx, o) })
	group.Go(func() error { return label(ctx) })
	for key, values := range map[string]<-chan string{podlabel.SouthboundWritten: writes, podlabel.NorthdMembers: runs} {
		own := podlabel.Label{Pods: s.client.CoreV1().Pods(s.namespace), Pod: s.pod, Key: key, Log: ctrl.Log}
		group.Go(func() error { own.Follow(ctx, values); return nil })
	}
	return group.Wait()
}
