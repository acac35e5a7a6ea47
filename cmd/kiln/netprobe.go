// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kiln-net/kiln/agent/pinger"
	"github.com/kiln-net/kiln/internal/netprobe"
)

func newNetprobeCommand() *cobra.Command {
	command := &cobra.Command{Use: "netprobe", Short: "Check whether pods reach one another, for `kubectl ko test`", Args: cobra.NoArgs}
	var address, name string
	serve := &cobra.Command{
		Use: "serve", Short: "Answer HTTP requests and datagrams with a name", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return netprobe.Serve(command.Context(), address, name)
		},
	}
	serve.Flags().StringVar(&address, "address", ":8080", "address and port")
	serve.Flags().StringVar(&name, "name", "", "name in the answers")
	client := &cobra.Command{
		Use: "client", Short: "Try the targets of the standard input, a JSON list, and print a list with their outcomes", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			var targets []netprobe.Target
			if err := json.NewDecoder(command.InOrStdin()).Decode(&targets); err != nil {
				return fmt.Errorf("read the targets: %w", err)
			}
			answers := netprobe.Client{Ping: pinger.Ping}.Probe(command.Context(), targets)
			if err := json.NewEncoder(command.OutOrStdout()).Encode(answers); err != nil {
				return fmt.Errorf("write the outcomes: %w", err)
			}
			return nil
		},
	}
	command.AddCommand(serve, client)
	return command
}
