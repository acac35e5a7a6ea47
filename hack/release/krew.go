// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"

	"sigs.k8s.io/yaml"
)

// versionPattern matches the versions of releases: semantic versions with a v, as krew and Go modules want them.
var versionPattern = regexp.MustCompile(`^v(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)

// plugin is kubectl-ko for a platform.
type plugin struct {
	system, architecture    string
	binary, archive, sha256 string
}

// platforms are the platforms for which kubectl-ko is built.
var platforms = []plugin{
	{system: "darwin", architecture: "amd64"}, {system: "darwin", architecture: "arm64"},
	{system: "linux", architecture: "amd64"}, {system: "linux", architecture: "arm64"},
	{system: "windows", architecture: "amd64"}, {system: "windows", architecture: "arm64"},
}

// Parts of krew's manifest of a plugin (krew.googlecontainertools.github.com/v1alpha2).
type (
	krewManifest struct {
		APIVersion string            `json:"apiVersion"`
		Kind       string            `json:"kind"`
		Metadata   map[string]string `json:"metadata"`
		Spec       krewSpec          `json:"spec"`
	}
	krewSpec struct {
		Version          string         `json:"version"`
		Homepage         string         `json:"homepage"`
		ShortDescription string         `json:"shortDescription"`
		Description      string         `json:"description"`
		Platforms        []krewPlatform `json:"platforms"`
	}
	krewPlatform struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		URI    string     `json:"uri"`
		SHA256 string     `json:"sha256"`
		Bin    string     `json:"bin"`
		Files  []krewFile `json:"files"`
	}
	krewFile struct {
		From string `json:"from"`
		To   string `json:"to"`
	}
)

// krew returns the manifest with which `kubectl krew install --manifest=ko.yaml` installs the plugin.
func krew(version, url string, archives []plugin) ([]byte, error) {
	m := krewManifest{
		APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin", Metadata: map[string]string{"name": "ko"},
		Spec: krewSpec{
			Version: version, Homepage: "https://github.com/kiln-net/kiln", ShortDescription: "Operate OVN as Kiln runs it",
			Description: "Runs OVN's and Open vSwitch's programs in the pods of Kiln, and shows and controls\nits databases, backups and recovery. It checks clusters before an installation or a\nmigration from Kube-OVN.\n",
		},
	}
	for _, a := range archives {
		p := krewPlatform{
			URI: url + "/" + version + "/" + a.archive, SHA256: a.sha256, Bin: a.binary,
			Files: []krewFile{{From: a.binary, To: "."}, {From: "LICENSE", To: "."}, {From: "THIRD-PARTY-NOTICES", To: "."}},
		}
		p.Selector.MatchLabels = map[string]string{"os": a.system, "arch": a.architecture}
		m.Spec.Platforms = append(m.Spec.Platforms, p)
	}
	out, err := yaml.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("write krew's manifest: %w", err)
	}
	return out, nil
}
