// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kiln-net/kiln/hack/lab/prepare"
	"github.com/kiln-net/kiln/hack/lab/topology"
)

// TestCoreDNSHasThePluginsOfItsCorefile: the lab's CoreDNS does not start if its Corefile names a plugin that it is built without. Users of the
// lab see no more than pods that restart.
func TestCoreDNSHasThePluginsOfItsCorefile(t *testing.T) {
	built := builtPlugins(t)
	corefiles := 0
	objects, err := coreDNSObjects(topology.Topology{ControlPlanes: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		corefile, found, err := unstructured.NestedString(o.Object, "data", "Corefile")
		if err != nil {
			t.Fatal(err)
		}
		if !found {
			continue
		}
		corefiles++
		plugins := pluginsOf(corefile)
		if len(plugins) < 3 {
			t.Errorf("%s has the plugins %v only: this test does not read it", o.GetName(), plugins)
		}
		for _, plugin := range plugins {
			if !slices.Contains(built, plugin) {
				t.Errorf("%s has the plugin %s: import it in hack/lab/programs/kubernetes/coredns", o.GetName(), plugin)
			}
		}
	}
	if corefiles == 0 {
		t.Error("there is no Corefile")
	}
}

// builtPlugins returns the plugins that the lab's CoreDNS imports, by their names in a Corefile.
func builtPlugins(t *testing.T) []string {
	t.Helper()
	source, err := prepare.Source()
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(source, "hack/lab/programs/kubernetes/coredns/main.go"), nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var plugins []string
	for _, i := range file.Imports {
		imported := strings.Trim(i.Path.Value, `"`)
		if dir, name := path.Split(imported); dir == "github.com/coredns/coredns/plugin/" {
			if name == "metrics" { // the only one whose directive has another name than its package (plugin.cfg of CoreDNS)
				name = "prometheus"
			}
			plugins = append(plugins, name)
		}
	}
	return plugins
}

// pluginsOf returns the directives of all server blocks of a Corefile. Their options are in braces of their own.
func pluginsOf(corefile string) []string {
	var plugins []string
	depth := 0
	for line := range strings.Lines(corefile) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if depth == 1 && len(words) > 0 && words[0] != "}" {
			plugins = append(plugins, words[0])
		}
		depth += strings.Count(line, "{") - strings.Count(line, "}")
	}
	return plugins
}

func TestPluginsOfACorefile(t *testing.T) {
	got := pluginsOf(".:53 {\n  errors # not: health\n  cache 30 {\n    disable success\n  }\n}\nacme.local:53 {\n  forward . 10.0.0.1\n}\n")
	if want := []string{"errors", "cache", "forward"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
