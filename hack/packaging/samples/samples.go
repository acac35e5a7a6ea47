// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package samples writes the kustomization of config/samples.
package samples

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	kubeovnv1 "github.com/kiln-net/kiln/api/v1"
)

// kustomization is the name of the file that Write writes.
const kustomization = "kustomization.yaml"

const header = `# Written by ` + "`make manifests`" + ` from the files of this directory, ordered by the kind of their first object: do not edit.
# The other ovncluster_*.yaml are not listed, because a cluster has one OVNCluster. policy_*.yaml are not, because they restrict tenants, and
# external_*.yaml and subnet_underlay.yaml are not, because they change an interface of each node.
resources:
`

// unlisted are patterns of the names of samples that are applied one by one only.
var unlisted = []string{kustomization, "ovncluster_*.yaml", "policy_*.yaml", "external_*.yaml", "subnet_underlay.yaml"}

var firstKind = regexp.MustCompile(`(?m)^kind: (\w+)$`)

// Write writes the kustomization of a directory of samples. Objects follow the objects that they need: namespaces, the OVNCluster, the kinds of
// kubeovn.io in the order of their table, and last what only Kubernetes defines, such as pods.
func Write(dir string) error {
	text, err := list(dir)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, kustomization), text, 0o644)
}

// sample is a file, and the place of its first object's kind in the order.
type sample struct {
	name string
	rank int
}

func list(dir string) ([]byte, error) {
	order := []string{"Namespace", "OVNCluster"}
	for _, kind := range kubeovnv1.Kinds {
		order = append(order, kind.Kind)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, fmt.Errorf("list the samples: %w", err)
	}
	var samples []sample
	for _, file := range files {
		base := filepath.Base(file)
		if slices.ContainsFunc(unlisted, func(pattern string) bool { match, _ := filepath.Match(pattern, base); return match }) {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read a sample: %w", err)
		}
		kind := firstKind.FindSubmatch(text)
		if kind == nil {
			return nil, fmt.Errorf("sample %s has no kind", base)
		}
		rank := slices.Index(order, string(kind[1]))
		if rank < 0 {
			rank = len(order)
		}
		samples = append(samples, sample{base, rank})
	}
	slices.SortFunc(samples, func(a, b sample) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.name, b.name)) })
	text := []byte(header)
	for _, s := range samples {
		text = append(text, "- "+s.name+"\n"...)
	}
	return text, nil
}
