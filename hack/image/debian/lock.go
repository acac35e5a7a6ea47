// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package debian makes the root file system of Kiln's image from the Debian packages of a lock file. No package's script runs: the files of
// the packages are extracted, and the few results of scripts that the image needs are made here. The same lock gives the same bytes.
package debian

import (
	"bufio"
	"embed"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// Suite is the Debian release of the packages.
const Suite = "trixie"

// Architectures are the architectures that have a lock file, in the names that Debian and Go share.
var Architectures = []string{"amd64", "arm64"}

// Package is one package of a lock file.
type Package struct {
	Name, Version, Architecture string
	SHA256                      string // of the .deb file, in hexadecimal
	Path                        string // of the .deb file in Debian's archive: pool/…
}

// security reports whether the package comes from the archive of security updates, whose pool is separate.
func (p Package) security() bool { return strings.HasPrefix(p.Path, "pool/updates/") }

// own has the lock files, and the sources of this package because its results depend on them.
//
//go:embed *.lock *.go
var own embed.FS

// Inputs returns everything that the root file system of an architecture depends on.
func Inputs(architecture string) ([]string, error) {
	if _, err := Lock(architecture); err != nil {
		return nil, err
	}
	entries, err := own.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("read the inputs of the root file system: %w", err)
	}
	var inputs []string
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".lock") && name != architecture+".lock" {
			continue
		}
		content, err := own.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read the inputs of the root file system: %w", err)
		}
		inputs = append(inputs, name, string(content))
	}
	return inputs, nil
}

// LockFile is the path of an architecture's lock file in the repository.
func LockFile(architecture string) string {
	return path.Join("hack/image/debian", architecture+".lock")
}

// Lock returns the packages of an architecture's lock file.
func Lock(architecture string) ([]Package, error) {
	content, err := own.ReadFile(architecture + ".lock")
	if err != nil {
		return nil, fmt.Errorf("the image is built for %s, not for %s", strings.Join(Architectures, " and "), architecture)
	}
	packages, err := parseLock(string(content), architecture)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", LockFile(architecture), err)
	}
	return packages, nil
}

const lockHeader = `# Debian packages of Kiln's image: name, version, architecture, SHA-256 of the .deb file, path in Debian's archive.
# Written by: make image-lock
`

// Patterns of a lock's fields (deb-version(7), Debian Policy 5.6.1). A path has no component "..".
var (
	namePattern    = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	versionPattern = regexp.MustCompile(`^[0-9][A-Za-z0-9.+:~-]*$`)
	hashPattern    = regexp.MustCompile(`^[0-9a-f]{64}$`)
	pathPattern    = regexp.MustCompile(`^pool(/[A-Za-z0-9+~_-][A-Za-z0-9.+~_-]*)+\.deb$`)
)

func parseLock(content, architecture string) ([]Package, error) {
	var all []Package
	lines := bufio.NewScanner(strings.NewReader(content))
	for number := 1; lines.Scan(); number++ {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 5 {
			return nil, fmt.Errorf("line %d has %d fields, not 5", number, len(f))
		}
		p := Package{Name: f[0], Version: f[1], Architecture: f[2], SHA256: f[3], Path: f[4]}
		switch {
		case !namePattern.MatchString(p.Name), !versionPattern.MatchString(p.Version), !hashPattern.MatchString(p.SHA256), !pathPattern.MatchString(p.Path):
			return nil, fmt.Errorf("line %d: %s is not a package", number, line)
		case p.Architecture != architecture && p.Architecture != "all":
			return nil, fmt.Errorf("line %d: %s is a package for %s", number, p.Name, p.Architecture)
		}
		all = append(all, p)
	}
	return all, lines.Err()
}

// FormatLock returns the content of the lock file with these packages.
func FormatLock(packages []Package) []byte {
	out := []byte(lockHeader)
	for _, p := range packages {
		out = fmt.Appendf(out, "%s %s %s %s %s\n", p.Name, p.Version, p.Architecture, p.SHA256, p.Path)
	}
	return out
}
