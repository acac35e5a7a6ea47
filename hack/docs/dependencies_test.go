// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

const module = "github.com/kiln-net/kiln/"

// TestDependencies checks imports through other packages, which depguard (.golangci.yml) does not follow.
func TestDependencies(t *testing.T) {
	for _, tt := range []struct {
		packages string
		never    []string // import paths, and packages below them
	}{
		{"agent/...", []string{module + "internal/northbound", module + "internal/reconciler", module + "controllers"}},
		{"controllers/operator/...", []string{
			module + "internal/northbound", module + "internal/ovsdb/nb", module + "internal/reconciler", module + "controllers", module + "agent",
			"github.com/ovn-kubernetes/libovsdb",
		}},
		{"supervisor/...", []string{module + "internal/northbound", module + "controllers", module + "agent"}},
		{"internal/workload", []string{module + "controllers", module + "api"}},
		{"internal/northbound/translate", []string{"sigs.k8s.io/controller-runtime", "k8s.io/client-go"}},
		// Libraries of hack and of tests only (docs/decisions/2026-11-25-packages.md).
		{"cmd/...", []string{"github.com/operator-framework", "sigs.k8s.io/kustomize", "github.com/yuin"}},
		{"cmd/kube-ovn", []string{"net/http", "os/exec", "k8s.io", "sigs.k8s.io"}},
		{"internal/address/ipam", []string{"k8s.io", "sigs.k8s.io"}},
		{"api/...", []string{"k8s.io/client-go", module + "controllers", module + "internal", module + "supervisor"}},
	} {
		t.Run(tt.packages, func(t *testing.T) {
			for _, dep := range dependencies(t, tt.packages) {
				if own, _, all := strings.Cut(tt.packages, "/..."); all && strings.HasPrefix(dep+"/", module+own+"/") {
					continue
				}
				if slices.ContainsFunc(tt.never, func(never string) bool { return dep == never || strings.HasPrefix(dep, never+"/") }) {
					t.Errorf("depends on %s; packages with their imports: go list -deps -f '{{.ImportPath}} {{.Imports}}' ./%s", dep, tt.packages)
				}
			}
		})
	}
}

// TestThePluginIsPortable: releases have kubectl-ko for other systems than Linux, and a package of this module that is for Linux only does not compile there.
func TestThePluginIsPortable(t *testing.T) {
	loaded, err := packages.Load(&packages.Config{
		Context: t.Context(), Dir: root, Mode: packages.NeedName | packages.NeedImports | packages.NeedDeps, Env: append(os.Environ(), "GOOS=windows", "CGO_ENABLED=0"),
	}, "./cmd/kubectl-ko")
	if err != nil {
		t.Fatalf("list the dependencies of the plugin: %v", err)
	}
	packages.Visit(loaded, nil, func(p *packages.Package) {
		for _, linux := range []string{"golang.org/x/sys/unix", "github.com/vishvananda/netlink"} {
			if _, imports := p.Imports[linux]; imports && strings.HasPrefix(p.PkgPath, module) {
				t.Errorf("%s imports %s, and does not compile for Windows: put that into a file for Linux, as in internal/netprobe/socket", p.PkgPath, linux)
			}
		}
	})
}

// dependencies returns the import paths of the packages of a pattern and of all that they import, without their tests.
func dependencies(t *testing.T, pattern string) []string {
	t.Helper()
	loaded, err := packages.Load(&packages.Config{
		Context: t.Context(), Dir: root, Mode: packages.NeedName | packages.NeedImports | packages.NeedDeps,
	}, "./"+pattern)
	if err != nil {
		t.Fatalf("list the dependencies of %s: %v", pattern, err)
	}
	var deps []string
	packages.Visit(loaded, nil, func(p *packages.Package) { deps = append(deps, p.PkgPath) })
	if !slices.ContainsFunc(deps, func(d string) bool { return strings.HasPrefix(d, module) }) {
		t.Fatalf("%s has no package of this module", pattern)
	}
	return deps
}
