// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// HostPath is the directory, below the cache, of links to the programs that tests may call on the host.
const HostPath = "path"

// tools are found by the PATH that `make` was started with, whether a Debian package provides them or not.
var tools = []string{"go", "gofmt", "make"}

// binaries are the directories in which Debian's packages have programs. The other names of these directories link to them.
var binaries = []string{"/usr/bin", "/usr/sbin"}

// permitted returns the programs, by name, that tests may call on the host: the programs of hostPackages, of the
// packages that every Debian has and of the dependencies of both, and tools.
func permitted(ctx context.Context) (map[string]string, error) {
	status, err := exec.CommandContext(ctx, "dpkg-query", "--show", "--showformat", statusFormat).Output()
	if err != nil {
		return nil, fmt.Errorf("list the installed packages: %w", err)
	}
	names := make([]string, 0, len(hostPackages))
	for _, p := range hostPackages {
		if p.only == "" { // targets with extra packages use the host's own PATH
			names = append(names, p.name)
		}
	}
	packages := closure(parseStatus(status), names)
	files, err := exec.CommandContext(ctx, "dpkg-query", append([]string{"--listfiles"}, packages...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("list the files of packages: %w", err)
	}
	programs, err := programsOf(files, binaries)
	if err != nil {
		return nil, err
	}
	for _, name := range tools {
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, fmt.Errorf("find a program that make test needs: %w", err)
		}
		if programs[name], err = filepath.EvalSymlinks(path); err != nil {
			return nil, fmt.Errorf("find a program that make test needs: %w", err)
		}
	}
	return programs, nil
}

// statusFormat prints one line per package (dpkg-query(1)).
const statusFormat = `${binary:Package}\t${db:Status-Status}\t${Essential}\t${Priority}\t${Provides}\t${Pre-Depends}, ${Depends}\n`

// installed is one installed package.
type installed struct {
	name     string // with its architecture where dpkg wants it
	always   bool   // every Debian has it
	provides []string
	depends  [][]string // alternatives, one list per dependency
}

// parseStatus reads what statusFormat prints.
func parseStatus(out []byte) []installed {
	var all []installed
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 6 || f[1] != "installed" {
			continue
		}
		p := installed{name: f[0], always: f[2] == "yes" || f[3] == "required"}
		for provided := range strings.SplitSeq(f[4], ",") {
			p.provides = append(p.provides, packageName(provided))
		}
		for dependency := range strings.SplitSeq(f[5], ",") {
			var alternatives []string
			for alternative := range strings.SplitSeq(dependency, "|") {
				if name := packageName(alternative); name != "" {
					alternatives = append(alternatives, name)
				}
			}
			p.depends = append(p.depends, alternatives)
		}
		all = append(all, p)
	}
	return all
}

// notName matches the rest of a relation field's entry after the package's name: architecture and version.
var notName = regexp.MustCompile(`[:( ].*$`)

func packageName(relation string) string {
	return notName.ReplaceAllString(strings.TrimSpace(relation), "")
}

// closure returns the installed packages among names, the packages that every Debian has, and the dependencies of both.
func closure(all []installed, names []string) []string {
	real, providers := map[string]installed{}, map[string][]installed{}
	for _, p := range all {
		name := packageName(p.name)
		real[name] = p
		for _, provided := range p.provides {
			providers[provided] = append(providers[provided], p)
		}
		if p.always {
			names = append(names, name)
		}
	}
	// meets returns the package that meets a dependency: the package of that name, otherwise the provider that every Debian has, otherwise any.
	meets := func(name string) (installed, bool) {
		if p, ok := real[name]; ok {
			return p, true
		}
		for _, p := range providers[name] {
			if p.always {
				return p, true
			}
		}
		if len(providers[name]) > 0 {
			return providers[name][0], true
		}
		return installed{}, false
	}
	var out []string
	seen := map[string]bool{}
	for ; len(names) > 0; names = names[1:] {
		p, ok := meets(names[0])
		if !ok || seen[p.name] {
			continue
		}
		seen[p.name] = true
		out = append(out, p.name)
		for _, alternatives := range p.depends {
			for _, name := range alternatives {
				if _, ok := meets(name); ok { // the first one that is installed
					names = append(names, name)
					break
				}
			}
		}
	}
	return out
}

// programsOf returns the executable files in directories that are in a list of packages' files, or are links to a file in that list as
// update-alternatives(1) makes them, by name.
func programsOf(list []byte, directories []string) (map[string]string, error) {
	files := map[string]bool{}
	for line := range bytes.Lines(list) {
		path := string(bytes.TrimSpace(line))
		if real, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil { // /bin is /usr/bin
			files[filepath.Join(real, filepath.Base(path))] = true
		}
	}
	programs := map[string]string{}
	for _, dir := range directories {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("read a directory of programs: %w", err)
		}
		for _, entry := range entries {
			path := filepath.Join(dir, entry.Name())
			real, err := filepath.EvalSymlinks(path)
			if err != nil || !files[path] && !files[real] {
				continue
			}
			if info, err := os.Stat(real); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				programs[entry.Name()] = path
			}
		}
	}
	return programs, nil
}
