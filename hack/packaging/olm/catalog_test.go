// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package olm

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/operator-framework/operator-registry/alpha/declcfg"
)

// TestTheCatalogUpgrades makes a catalog of two versions and reads it as OLM does.
func TestTheCatalogUpgrades(t *testing.T) {
	const digest = "@sha256:0000000000000000000000000000000000000000000000000000000000000000"
	first := write(t, Options{Version: "v0.1.0", Image: "registry.example.com/kiln" + digest})
	second := write(t, Options{Version: "v0.2.0", Image: "registry.example.com/kiln" + digest, Replaces: "v0.1.0", Created: "2027-01-01T00:00:00Z"})
	text, err := Catalog([]Published{{first, "registry.example.com/kiln-bundle:v0.1.0"}, {second, "registry.example.com/kiln-bundle:v0.2.0"}})
	if err != nil {
		t.Fatal(err)
	}
	config, err := declcfg.LoadReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	catalog, err := declcfg.ConvertToModel(*config)
	if err != nil {
		t.Fatal(err)
	}
	channel := catalog[Package].DefaultChannel
	head, err := channel.Head()
	if err != nil {
		t.Fatal(err)
	}
	if head.Name != "kiln.v0.2.0" || head.Replaces != "kiln.v0.1.0" || len(channel.Bundles) != 2 || channel.Name != Channel {
		t.Errorf("the channel %s has the head %s, which replaces %s, and %d versions", channel.Name, head.Name, head.Replaces, len(channel.Bundles))
	}
	if head.Image != "registry.example.com/kiln-bundle:v0.2.0" || head.Version.String() != "0.2.0" || len(head.RelatedImages) != 2 {
		t.Errorf("the head is %s in %s with %v", head.Version, head.Image, head.RelatedImages)
	}

	if _, err := Catalog([]Published{{second, "registry.example.com/kiln-bundle:v0.2.0"}, {first, "a:b"}, {first, "a:b"}}); err == nil ||
		!strings.Contains(err.Error(), "kiln.v0.1.0") {
		t.Errorf("a catalog with one version twice: %v", err)
	}
	if _, err := Catalog([]Published{{t.TempDir(), "a:b"}}); err == nil {
		t.Error("a catalog of an empty directory has no error")
	}
}

func TestInvalidVersionsHaveNoBundle(t *testing.T) {
	for _, o := range []Options{{Version: "latest", Image: "registry.example.com/kiln:v1"}, {Version: "v1.0.0", Image: "kiln"}} {
		o.Config = config
		if _, err := Bundle(o); err == nil {
			t.Errorf("%+v has a bundle", o)
		}
	}
	if _, err := Bundle(Options{Config: t.TempDir(), Version: "v1.0.0", Image: "registry.example.com/kiln:v1"}); err == nil {
		t.Error("an empty directory has a bundle")
	}
	if _, err := os.Stat(filepath.Join(root, "bundle", "Dockerfile")); err != nil {
		t.Error(err)
	}
}
