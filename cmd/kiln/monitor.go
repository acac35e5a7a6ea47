// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kiln-net/kiln/internal/monitor"
	"github.com/kiln-net/kiln/internal/serving/tlsdir"
	"github.com/kiln-net/kiln/internal/version"
	"github.com/kiln-net/kiln/supervisor"
	"github.com/kiln-net/kiln/supervisor/adminapi"
)

// monitorHealthPort is the port of metrics, /healthz and /readyz.
const monitorHealthPort = 10661

func newMonitorCommand() *cobra.Command {
	var tlsDir string
	command := &cobra.Command{
		Use:   "monitor",
		Short: "Export the metrics of the databases and of ovn-northd",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return supervisor.ReportFailure(runMonitor(command.Context(), tlsDir))
		},
	}
	command.Flags().StringVar(&tlsDir, "tls-dir", "/etc/kiln/tls", "directory of tls.crt, tls.key and ca.crt")
	return command
}

func runMonitor(ctx context.Context, tlsDir string) error {
	access := newAccess(monitorHealthPort)
	s, err := surround(ctx, component{verbosity: centralVerbosity, profilingPort: monitorHealthPort + profilingOffset, access: access})
	if err != nil {
		return err
	}
	pods := &monitor.Pods{Client: s.client.CoreV1().Pods(s.namespace)}
	gatherer := &monitor.Monitor{
		Targets: pods.Targets,
		Client: func(t monitor.Target) (*adminapi.Client, error) {
			config, err := tlsdir.Client(tlsDir, t.Server)
			if err != nil {
				return nil, err
			}
			return adminapi.NewClient(t.Address, config), nil
		},
		Log: ctrl.Log,
	}
	ready := func(context.Context) error { return nil }
	return supervisor.ServeHealth(ctx, fmt.Sprintf(":%d", monitorHealthPort), ready, version.Own, access.Handler(monitorMetrics(gatherer)))
}

// monitorMetrics serves the metrics of this process and of the targets.
func monitorMetrics(gatherer prometheus.Gatherer) http.Handler {
	own := prometheus.NewRegistry()
	own.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(prometheus.Gatherers{own, gatherer}, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
}
