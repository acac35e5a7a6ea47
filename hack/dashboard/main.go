// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command dashboard writes the dashboard of config/dashboards for Grafana, and pages that show dashboards without Grafana.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-net/kiln/hack/dashboard/page"
	"github.com/kiln-net/kiln/hack/dashboard/panels"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	root := &cobra.Command{Use: "dashboard", Short: "Write dashboards", SilenceUsage: true}
	root.AddCommand(jsonCommand(), pagesCommand())
	if root.ExecuteContext(ctx) != nil {
		stop()
		os.Exit(1)
	}
}

func jsonCommand() *cobra.Command {
	return &cobra.Command{
		Use: "json", Short: "Write config/dashboards", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			text, err := panels.Overview.Grafana()
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join("config/dashboards", panels.Overview.Name+".json"), text, 0o644)
		},
	}
}

func pagesCommand() *cobra.Command {
	address, output, last := "http://127.0.0.1:9090", "_output/dashboards", 15*time.Minute
	cmd := &cobra.Command{
		Use: "pages", Short: "Write an HTML page with the data of a Prometheus for the overview, and for each dashboard of Kube-OVN", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			written, err := page.Write(cmd.Context(), page.HTTP(address), output, time.Now(), last)
			fmt.Fprintln(cmd.OutOrStdout(), written)
			return err
		},
	}
	cmd.Flags().StringVar(&address, "prometheus", address, "URL of Prometheus")
	cmd.Flags().StringVar(&output, "output", output, "directory of the pages")
	cmd.Flags().DurationVar(&last, "last", last, "time span of the diagrams")
	return cmd
}
