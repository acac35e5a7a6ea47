// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kiln-net/kiln/hack/lab/cache"
)

// CompilerFlags are the flags of `go build` for the programs of the lab and of the image. GOFLAGS in the Makefile has the same, so
// that Go compiles each package once.
//
// The tag leaves golang.org/x/net/trace out of gRPC, which GoBGP and Kubernetes import: its templates call methods by name, so that the linker could not
// remove unused methods of any package, and it registers debug pages. Without information for debuggers, which the linker would drop, compilers
// take a fifth less.
var CompilerFlags = []string{"-trimpath", "-tags=grpcnotrace", "-gcflags=all=-dwarf=false"}

const linkerFlags = "-ldflags=-s -w"

// programsModule is the module of the lab's programs, below the repository. Its versions of modules that the repository's module requires too are the same.
const programsModule = "hack/lab/programs/kubernetes"

// labPrograms are the programs of each lab and their packages. One `go build` compiles each package that they share once, and links side by side.
var labPrograms = map[string]string{
	"agnhost":                 "k8s.io/kubernetes/test/images/agnhost",
	"coredns":                 "./coredns",
	"etcd":                    "go.etcd.io/etcd/server/v3",
	"kube-apiserver":          "k8s.io/kubernetes/cmd/kube-apiserver",
	"kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
	"kube-scheduler":          "k8s.io/kubernetes/cmd/kube-scheduler",
	"kubectl":                 "k8s.io/kubernetes/cmd/kubectl",
	"kubelet":                 "k8s.io/kubernetes/cmd/kubelet",
}

// kubernetes are the programs of each lab, built without cgo, so that one file runs everywhere.
func kubernetes(o Options) cache.Artifact {
	return goPrograms(o, "kubernetes", "build Kubernetes, etcd and CoreDNS: minutes if Go has nothing of them cached", labPrograms)
}

// kubeProxy is the program of labs with kube-proxy.
func kubeProxy(o Options) cache.Artifact {
	return goPrograms(o, "kube-proxy", "build kube-proxy", map[string]string{"kube-proxy": "k8s.io/kubernetes/cmd/kube-proxy"})
}

// goPrograms is an artifact of programs of programsModule: their packages by their names.
func goPrograms(o Options, name, title string, programs map[string]string) cache.Artifact {
	dir := filepath.Join(o.Source, programsModule)
	packages, outputs := make([]string, 0, len(programs)), make([]string, 0, len(programs))
	for name, pkg := range programs {
		packages, outputs = append(packages, pkg), append(outputs, filepath.Join("bin", name))
	}
	return cache.Artifact{
		Name: name, Title: title, Outputs: outputs,
		Inputs: func() ([]string, error) { return moduleInputs(dir) },
		Build: func(ctx context.Context, into string) error {
			bin := filepath.Join(into, "bin")
			if err := buildPrograms(ctx, o, name, dir, bin, packages...); err != nil {
				return err
			}
			for name, pkg := range programs {
				if err := os.Rename(filepath.Join(bin, builtName(pkg)), filepath.Join(bin, name)); err != nil {
					return fmt.Errorf("rename a program: %w", err)
				}
			}
			return nil
		},
	}
}

// builtName is the name that go build gives the program of a package: the last element of its path that is no major version.
func builtName(pkg string) string {
	if base := path.Base(pkg); len(base) > 1 && base[0] == 'v' && strings.Trim(base[1:], "0123456789") == "" {
		return path.Base(path.Dir(pkg))
	}
	return path.Base(pkg)
}

// buildPrograms builds programs of a module into a directory.
func buildPrograms(ctx context.Context, o Options, log, module, into string, packages ...string) error {
	version, err := versionFlags(module)
	if err != nil {
		return err
	}
	args := slices.Concat([]string{"build"}, CompilerFlags, []string{linkerFlags + version, "-o", into + "/"}, packages)
	return run(ctx, o.Cache.Log(log), module, []string{"CGO_ENABLED=0"}, "go", args...)
}

// moduleInputs returns what the programs of a module depend on: the versions of Go and of all modules, flags, and the module's own sources.
func moduleInputs(dir string) ([]string, error) {
	cmd := exec.Command("go", "env", "GOVERSION")
	cmd.Dir = dir
	version, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("find the version of Go: %w", err)
	}
	inputs := append([]string{string(version), versionVariable, linkerFlags}, CompilerFlags...)
	err = filepath.WalkDir(dir, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		raw, err := os.ReadFile(file)
		inputs = append(inputs, strings.TrimPrefix(file, dir), string(raw))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the module: %w", err)
	}
	return inputs, nil
}

// versionVariable is the variable with the version that Kubernetes' programs report. The linker sets it, as in Kubernetes' own
// build.
const versionVariable = "k8s.io/component-base/version.gitVersion"

// versionFlags returns linker flags that give the programs of a module the version of k8s.io/kubernetes that it requires, if any.
func versionFlags(dir string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("read the module: %w", err)
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(strings.TrimPrefix(line, "require ")); len(f) >= 2 && f[0] == "k8s.io/kubernetes" && strings.HasPrefix(f[1], "v") {
			return fmt.Sprintf(" -X %s=%s", versionVariable, f[1]), nil
		}
	}
	return "", nil
}
