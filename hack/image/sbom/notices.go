// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package sbom

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Notices returns the licences and notices of modules as one text. Modules with the same text share it. The modules are those of the repository at source.
func Notices(ctx context.Context, source string, modules []Module) ([]byte, error) {
	directories, err := directories(ctx, source, modules)
	if err != nil {
		return nil, err
	}
	var texts []string // in the order of their first module
	users := map[string][]string{}
	for _, m := range modules {
		text, err := notice(directories[m])
		if err != nil {
			return nil, fmt.Errorf("read the licence of %s %s: %w", m.Path, m.Version, err)
		}
		if users[text] == nil {
			texts = append(texts, text)
		}
		users[text] = append(users[text], m.Path+" "+m.Version)
	}
	out := []byte("Licences and notices of the Go modules in Kiln's programs.\nThose of Debian's packages are in /usr/share/doc/<package>/copyright.\n")
	for _, text := range texts {
		out = fmt.Appendf(out, "\n%s\n%s\n\n%s", strings.Repeat("=", 80), strings.Join(users[text], "\n"), text)
	}
	return out, nil
}

// directories returns the directories with the sources of modules.
func directories(ctx context.Context, source string, modules []Module) (map[Module]string, error) {
	args := []string{"list", "-m", "-json=Path,Version,Dir,Replace"}
	for _, m := range modules {
		if m.Path != Standard {
			args = append(args, m.Path)
		}
	}
	list := exec.CommandContext(ctx, "go", args...)
	list.Dir, list.Stderr = source, os.Stderr
	raw, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the modules: %w", err)
	}
	found := map[Module]string{}
	for decoder := json.NewDecoder(bytes.NewReader(raw)); ; {
		var m struct {
			Path, Version, Dir string
			Replace            *Module
		}
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read the list of modules: %w", err)
		}
		if m.Replace != nil {
			m.Path, m.Version = m.Replace.Path, m.Replace.Version
		}
		found[Module{m.Path, m.Version}] = m.Dir
	}
	root := exec.CommandContext(ctx, "go", "env", "GOROOT")
	root.Dir = source
	goroot, err := root.Output()
	if err != nil {
		return nil, fmt.Errorf("find the sources of Go: %w", err)
	}
	for _, m := range modules {
		if m.Path == Standard {
			found[m] = strings.TrimSpace(string(goroot))
		}
		if found[m] == "" {
			return nil, fmt.Errorf("the sources of module %s %s are missing: run go mod download", m.Path, m.Version)
		}
	}
	return found, nil
}

// licenceFile matches the names of files that a distribution of a module must contain.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|copyright|notice|patents)([.-].*)?$`)

// notice returns the texts of a module's licence files.
func notice(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var texts []string
	for _, entry := range entries {
		if !entry.Type().IsRegular() || !licenceFile.MatchString(entry.Name()) || strings.HasSuffix(entry.Name(), ".go") {
			continue
		}
		raw, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return "", err
		}
		texts = append(texts, strings.TrimSpace(string(raw))+"\n")
	}
	if len(texts) == 0 {
		if above := filepath.Dir(dir); strings.Contains(filepath.Base(above), "@") { // a module in a directory of its repository
			return notice(above)
		}
		return "", errors.New("no file with a licence")
	}
	slices.Sort(texts)
	return strings.Join(slices.Compact(texts), "\n"), nil
}
