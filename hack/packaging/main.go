// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command packaging renders config/: to one file of manifests, or to the standard output for kubectl.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/kiln-net/kiln/hack/packaging/render"
)

func main() {
	root := &cobra.Command{Use: "packaging", Short: "Render the manifests of config/", SilenceUsage: true}
	root.AddCommand(renderCommand(), samplesCommand(), bundleCommand(), catalogCommand())
	if root.Execute() != nil {
		os.Exit(1)
	}
}

// renderCommand prints the objects of a kustomization, for kubectl, or writes them to a file.
func renderCommand() *cobra.Command {
	var image, output string
	command := &cobra.Command{
		Use: "render DIRECTORY", Short: "Print the objects of a kustomization", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			text, err := render.YAML(args[0], image)
			if err != nil {
				return err
			}
			if output == "" {
				_, err = os.Stdout.Write(text)
				return err
			}
			return write(output, text)
		},
	}
	command.Flags().StringVar(&image, "image", "", "image of the operator and, by default, of all components")
	command.Flags().StringVar(&output, "output", "", "file to write instead of the standard output")
	return command
}

// write writes a file and makes its directory.
func write(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the directory of %s: %w", path, err)
	}
	return os.WriteFile(path, text, 0o644)
}
