// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package olm

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/operator-registry/alpha/declcfg"
	"github.com/operator-framework/operator-registry/alpha/property"
)

// Published is a bundle and the image that has it.
type Published struct{ Dir, Image string }

// Catalog returns a file-based catalog of bundles. The field replaces of their ClusterServiceVersions is the graph of upgrades.
func Catalog(bundles []Published) ([]byte, error) {
	if len(bundles) == 0 {
		return nil, errors.New("a catalog needs a bundle")
	}
	config := declcfg.DeclarativeConfig{}
	channel := declcfg.Channel{Schema: declcfg.SchemaChannel, Name: Channel, Package: Package}
	for _, published := range bundles {
		bundle, err := manifests.GetBundleFromDir(published.Dir)
		if err != nil {
			return nil, fmt.Errorf("read the bundle in %s: %w", published.Dir, err)
		}
		if len(config.Packages) == 0 {
			icon, err := base64.StdEncoding.DecodeString(bundle.CSV.Spec.Icon[0].Data)
			if err != nil {
				return nil, fmt.Errorf("decode the icon of %s: %w", bundle.CSV.Name, err)
			}
			config.Packages = []declcfg.Package{{
				Schema: declcfg.SchemaPackage, Name: Package, DefaultChannel: Channel, Description: bundle.CSV.Annotations["description"],
				Icon: &declcfg.Icon{Data: icon, MediaType: bundle.CSV.Spec.Icon[0].MediaType},
			}}
		}
		channel.Entries = append(channel.Entries, declcfg.ChannelEntry{Name: bundle.CSV.Name, Replaces: bundle.CSV.Spec.Replaces})
		config.Bundles = append(config.Bundles, entry(bundle, published.Image))
	}
	config.Channels = []declcfg.Channel{channel}
	if _, err := declcfg.ConvertToModel(config); err != nil { // its checks
		return nil, fmt.Errorf("check the catalog: %w", err)
	}
	var text bytes.Buffer
	if err := declcfg.WriteYAML(config, &text); err != nil {
		return nil, fmt.Errorf("encode the catalog: %w", err)
	}
	return text.Bytes(), nil
}

// entry returns the description of a bundle from which OLM resolves dependencies and users choose.
func entry(bundle *manifests.Bundle, image string) declcfg.Bundle {
	b := declcfg.Bundle{
		Schema: declcfg.SchemaBundle, Name: bundle.CSV.Name, Package: Package, Image: image,
		Properties: []property.Property{
			property.MustBuildPackage(Package, bundle.CSV.Spec.Version.String()), property.MustBuildCSVMetadata(*bundle.CSV),
		},
		RelatedImages: []declcfg.RelatedImage{{Image: image}},
	}
	for _, owned := range bundle.CSV.Spec.CustomResourceDefinitions.Owned {
		_, group := split(owned.Name)
		b.Properties = append(b.Properties, property.MustBuildGVK(group, owned.Version, owned.Kind))
	}
	for _, related := range bundle.CSV.Spec.RelatedImages {
		b.RelatedImages = append(b.RelatedImages, declcfg.RelatedImage{Name: related.Name, Image: related.Image})
	}
	return b
}
