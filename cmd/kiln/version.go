// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/kiln-net/kiln/internal/version"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version: the tag that the image was built with",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			fmt.Fprintf(command.OutOrStdout(), "kiln %s %s/%s %s\n", version.Kiln, runtime.GOOS, runtime.GOARCH, runtime.Version())
			return nil
		},
	}
}
