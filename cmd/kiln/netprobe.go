// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/kiln-net/kiln/agent/pinger"
	"github.com/kiln-net/kiln/internal/envcheck"
	"github.com/kiln-net/kiln/internal/netprobe"
	"github.com/kiln-net/kiln/internal/netprobe/measure"
)

func newNetprobeCommand() *cobra.Command {
	command := &cobra.Command{Use: "netprobe", Short: "Check and measure the network between pods, for `kubectl ko`", Args: cobra.NoArgs}
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
			return withJSON(command, func(targets []netprobe.Target) []netprobe.Answer {
				return netprobe.Client{Ping: pinger.Ping}.Probe(command.Context(), targets)
			})
		},
	}
	node := &cobra.Command{
		Use: "node", Short: "Check the node by the settings of the standard input, in a pod of `kubectl ko env-check`", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return withJSON(command, envcheck.ThisNode) },
	}
	command.AddCommand(serve, client, node, newMeasureCommand())
	return command
}

func newMeasureCommand() *cobra.Command {
	command := &cobra.Command{
		Use: "measure", Short: "Make the measurements of the standard input, a JSON list, and print a list with their outcomes", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return withJSON(command, measure.RunAll) },
	}
	var addresses []string
	var port uint16
	var key string
	serve := &cobra.Command{
		Use: "serve", Short: "Be the other end of measurements", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			at := make([]string, 0, len(addresses))
			for _, address := range addresses {
				at = append(at, net.JoinHostPort(address, strconv.Itoa(int(port))))
			}
			return (&measure.Server{Key: key}).Serve(command.Context(), at...)
		},
	}
	serve.Flags().StringSliceVar(&addresses, "addresses", []string{""}, "addresses; by default all")
	serve.Flags().Uint16Var(&port, "port", 8080, "port of TCP and UDP")
	serve.Flags().StringVar(&key, "key", "", "text with which clients begin: the server ignores others")
	command.AddCommand(serve)
	return command
}

// withJSON calls f with the value at the standard input of a command, and prints the result.
func withJSON[In, Out any](command *cobra.Command, f func(In) Out) error {
	var in In
	if err := json.NewDecoder(command.InOrStdin()).Decode(&in); err != nil {
		return fmt.Errorf("read the standard input: %w", err)
	}
	if err := json.NewEncoder(command.OutOrStdout()).Encode(f(in)); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}
