// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kiln-net/kiln/hack/lab/cache"
)

const linkerFlags = "-ldflags=-s -w"

var buildFlags = []string{"-trimpath", linkerFlags}

// programs are the artifacts of the tool modules: every tool of a module, built without cgo, so that one file runs everywhere.
func programs(o Options) []cache.Artifact {
	return []cache.Artifact{
		toolModule(o, "kubernetes", "agnhost", "etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy",
			"kube-scheduler", "kubectl", "kubelet"),
		toolModule(o, "coredns", "coredns"),
	}
}

func toolModule(o Options, module string, names ...string) cache.Artifact {
	dir := filepath.Join(o.Source, "hack/lab/programs", module)
	outputs := make([]string, 0, len(names))
	for _, n := range names {
		outputs = append(outputs, filepath.Join("bin", n))
	}
	return cache.Artifact{
		Name:    module,
		Title:   fmt.Sprintf("build the programs of %s: %d, minutes if Go has nothing of it cached", module, len(names)),
		Outputs: outputs,
		Inputs:  func() ([]string, error) { return moduleInputs(dir) },
		Build: func(ctx context.Context, into string) error {
			bin := filepath.Join(into, "bin") + "/"
			flags, err := versionFlags(dir)
			if err != nil {
				return err
			}
			args := []string{"build", "-trimpath", linkerFlags + flags, "-o", bin, "tool"}
			if err := run(ctx, o.Cache.Log(module), dir, []string{"CGO_ENABLED=0"}, "go", args...); err != nil {
				return err
			}
			return renameServer(bin)
		},
	}
}

func moduleInputs(dir string) ([]string, error) {
	cmd := exec.Command("go", "env", "GOVERSION")
	cmd.Dir = dir
	version, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("find the version of Go: %w", err)
	}
	inputs := append([]string{string(version), versionVariable}, buildFlags...)
	for _, name := range []string{"go.mod", "go.sum"} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("read the module: %w", err)
		}
		inputs = append(inputs, string(raw))
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

// renameServer renames the program `server` to etcd. go build names it after etcd's package.
func renameServer(bin string) error {
	err := os.Rename(filepath.Join(bin, "server"), filepath.Join(bin, "etcd"))
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("rename etcd: %w", err)
	}
	return nil
}
