// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kiln-net/kiln/hack/packaging/olm"
	"github.com/kiln-net/kiln/hack/packaging/samples"
)

// samplesCommand writes the list of the samples that are applied together.
func samplesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "samples DIRECTORY", Short: "Write the kustomization of a directory of samples", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return samples.Write(args[0]) },
	}
}

// bundleCommand writes a bundle to a directory, which has nothing else afterwards.
func bundleCommand() *cobra.Command {
	o := olm.Options{Config: "config"}
	var output string
	command := &cobra.Command{
		Use: "bundle", Short: "Write the bundle of a version for the Operator Lifecycle Manager", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return olm.Write(o, output)
		},
	}
	command.Flags().StringVar(&o.Version, "version", "", "semantic version of the bundle")
	command.Flags().StringVar(&o.Image, "image", "", "image of the operator and of all components; for a release by its digest")
	command.Flags().StringVar(&o.Replaces, "replaces", "", "earlier version that this version is an upgrade of")
	command.Flags().StringVar(&o.Created, "created", "", "time of the version in RFC 3339")
	command.Flags().StringVar(&output, "output", "bundle", "directory of the bundle")
	return command
}

// catalogCommand writes a file-based catalog.
func catalogCommand() *cobra.Command {
	var output string
	command := &cobra.Command{
		Use: "catalog DIRECTORY=IMAGE...", Short: "Write a file-based catalog of bundles and the images that have them", Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var bundles []olm.Published
			for _, arg := range args {
				dir, image, found := strings.Cut(arg, "=")
				if !found {
					return fmt.Errorf("%s is not DIRECTORY=IMAGE", arg)
				}
				bundles = append(bundles, olm.Published{Dir: dir, Image: image})
			}
			text, err := olm.Catalog(bundles)
			if err != nil {
				return err
			}
			return write(output, text)
		},
	}
	command.Flags().StringVar(&output, "output", "dist/catalog/kiln/catalog.yaml", "file of the catalog")
	return command
}
