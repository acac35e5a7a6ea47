// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"bytes"
	"context"
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

// Keyring verifies Debian's archive.
const Keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// helper downloads files with apt's own methods, proxies and checks of hashes.
const helper = "/usr/lib/apt/apt-helper"

// mirrors are the base URIs of Debian's archive and of its security updates.
type mirrors struct{ main, security string }

// MirrorVariable is the environment variable that replaces the mirror of the machine's apt. Its security updates are at the same URI with the
// suffix "-security".
const MirrorVariable = "KILN_DEBIAN_MIRROR"

// findMirrors returns the mirrors of MirrorVariable or of the machine's apt sources. apt-get(8) reads its sources in all their formats.
func findMirrors(ctx context.Context) (mirrors, error) {
	if uri := strings.TrimSuffix(os.Getenv(MirrorVariable), "/"); uri != "" {
		return mirrors{main: uri, security: uri + "-security"}, nil
	}
	targets, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Created-By: Packages").Output()
	if err != nil {
		return mirrors{}, fmt.Errorf("list the sources of apt: %w", err)
	}
	m := parseTargets(string(targets))
	if m.main == "" {
		return mirrors{}, fmt.Errorf("the apt sources of this machine have no mirror of Debian: set %s to the URI of one", MirrorVariable)
	}
	return m, nil
}

// releases are the names by which apt sources call Debian's releases.
var releases = []string{"bullseye", "bookworm", "trixie", "forky", "sid", "oldoldstable", "oldstable", "stable", "testing", "unstable"}

// parseTargets finds Debian's mirrors in lines of release, component and URI. Other archives use the same releases; Debian's end in /debian and
// /debian-security on every mirror.
func parseTargets(targets string) mirrors {
	var m mirrors
	for line := range strings.Lines(targets) {
		f := strings.Fields(line)
		if len(f) != 3 || f[1] != "main" {
			continue
		}
		release, pocket, _ := strings.Cut(f[0], "-")
		uri := strings.TrimSuffix(f[2], "/")
		switch {
		case !slices.Contains(releases, strings.TrimSuffix(release, "/updates")):
		case m.main == "" && pocket != "security" && strings.HasSuffix(uri, "/debian"):
			m.main = uri
		case m.security == "" && strings.HasSuffix(uri, "/debian-security"):
			m.security = uri
		}
	}
	if m.security == "" && m.main != "" {
		m.security = m.main + "-security"
	}
	return m
}

func (m mirrors) uri(p Package) string {
	if p.security() {
		return m.security + "/" + p.Path
	}
	return m.main + "/" + p.Path
}

// errMissing is the failure of a download that a new lock file corrects.
var errMissing = errors.New("the mirror no longer has every package of the lock file; run: make image-lock, test the image, and commit the lock files")

// fetch downloads packages to files <name>.deb in a directory. apt's helper uses the proxies and credentials of the machine, and refuses files with
// another SHA-256.
func fetch(ctx context.Context, m mirrors, packages []Package, into string, log io.Writer) error {
	args := []string{"-q", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3", "download-file"}
	for _, p := range packages {
		args = append(args, m.uri(p), debFile(into, p), "SHA256:"+p.SHA256)
	}
	cmd := exec.CommandContext(ctx, helper, args...)
	var out bytes.Buffer
	both := io.MultiWriter(log, &out)
	cmd.Stdout, cmd.Stderr = both, both // the same writer: os/exec then writes from one goroutine
	err := cmd.Run()
	if err == nil {
		return nil
	}
	failures := errorsIn(out.String())
	switch {
	case slices.ContainsFunc(failures, missing.MatchString):
		return errMissing
	case len(failures) == 0:
		failures = []string{"it printed no error"}
	}
	return fmt.Errorf("download Debian packages: %w: %s", err, failures[0])
}

// missing matches apt's errors about a file that the mirror does not have, by HTTP or on disk. Names of files can contain 404, too.
var missing = regexp.MustCompile(`  404  |File not found`)

func debFile(dir string, p Package) string { return filepath.Join(dir, p.Name+".deb") }

// errorsIn returns the errors that apt printed.
func errorsIn(output string) (list []string) {
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "E: ") {
			list = append(list, strings.TrimSpace(line))
		}
	}
	return list
}

// Resolve returns the packages for a lock file: those that Debian's archive has now.
func Resolve(ctx context.Context, architecture string, log io.Writer) ([]Package, error) {
	m, err := findMirrors(ctx)
	if err != nil {
		return nil, err
	}
	root, err := os.MkdirTemp("", "kiln-apt-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for apt: %w", err)
	}
	defer os.RemoveAll(root)
	settings, err := privateApt(root, architecture, m)
	if err != nil {
		return nil, err
	}
	// apt verifies the signatures of the lists, so it is run instead of replaced.
	apt := func(out io.Writer, name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env = append(os.Environ(), "APT_CONFIG="+settings)
		cmd.Stdout, cmd.Stderr = out, log
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("run %s %s: %w", name, args[0], err)
		}
		return nil
	}
	if err := apt(log, "apt-get", "-o", "APT::Update::Error-Mode=any", "update"); err != nil {
		return nil, err
	}
	var available bytes.Buffer
	if err := apt(&available, "apt-cache", "dumpavail"); err != nil {
		return nil, err
	}
	index, err := parseIndex(&available)
	if err != nil {
		return nil, fmt.Errorf("read the index of packages: %w", err)
	}
	return closure(index, wanted, omitted)
}

// privateApt makes a root directory for apt, so that its lists of this architecture and release do not change the machine's, and returns the path of its
// configuration file.
func privateApt(root, architecture string, m mirrors) (string, error) {
	for _, dir := range []string{"etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/lib/dpkg", "var/cache/apt/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return "", fmt.Errorf("make a directory for apt: %w", err)
		}
	}
	sources := ""
	for _, source := range [][2]string{{m.main, Suite}, {m.main, Suite + "-updates"}, {m.security, Suite + "-security"}} {
		sources += fmt.Sprintf("deb [signed-by=%s] %s %s main\n", Keyring, source[0], source[1])
	}
	settings := filepath.Join(root, "apt.conf")
	for file, content := range map[string]string{
		filepath.Join(root, "etc/apt/sources.list"): sources,
		filepath.Join(root, "var/lib/dpkg/status"):  "",
		settings: fmt.Sprintf("Dir %q;\nDir::State::status %q;\nAPT::Architecture %q;\nAPT::Architectures { %q; };\nAcquire::Languages \"none\";\nAPT::Sandbox::User \"root\";\n",
			root, filepath.Join(root, "var/lib/dpkg/status"), architecture, architecture),
	} {
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			return "", fmt.Errorf("configure apt: %w", err)
		}
	}
	return settings, nil
}
