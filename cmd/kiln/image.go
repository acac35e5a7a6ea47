// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "github.com/spf13/cobra"

func newHoldImageCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "hold-image",
		Short: "Do nothing until the container is stopped: the node pulls its image and keeps it",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			<-command.Context().Done()
			return nil
		},
	}
}
