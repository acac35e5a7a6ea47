// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kiln-net/kiln/hack/image/archive"
	"github.com/kiln-net/kiln/hack/image/debian"
	"github.com/kiln-net/kiln/hack/image/sbom"
	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/machine"
	"github.com/kiln-net/kiln/hack/lab/prepare"
	"github.com/kiln-net/kiln/hack/lab/progress"
	"github.com/kiln-net/kiln/internal/testing/prepared"
)

// program is a Go package of the image, and its path there.
type program struct{ pkg, path string }

var programs = []program{
	{"github.com/kiln-net/kiln/cmd/kiln", "/usr/bin/kiln"},
	{"github.com/kiln-net/kiln/cmd/kube-ovn", "/opt/kiln/cni/kube-ovn"},
	{"github.com/containernetworking/plugins/plugins/main/loopback", "/opt/kiln/cni/loopback"},
	{"github.com/containernetworking/plugins/plugins/meta/portmap", "/opt/kiln/cni/portmap"},
}

// pluginLink is the name under which /usr/bin/kiln is the kubectl plugin. Agents copy the program from there to nodes.
var pluginLink = archive.Entry{Path: "/usr/bin/kubectl-ko", Link: "kiln"}

// Files of the image about its contents.
const (
	documentation = "/usr/share/doc/kiln"
	noticesFile   = "THIRD-PARTY-NOTICES"
	sbomFile      = "kiln.spdx.json"
)

// build is one run of the command.
type build struct {
	output, tag, revision string
	platforms             []string
	programs              []program
	report                *progress.Reporter

	source  string
	cache   cache.Dir
	created *v1.Time
}

// work is the directory in which the parts of an architecture's image are built.
func (b *build) work(architecture string) string {
	return filepath.Join(filepath.Dir(b.output), "image", architecture)
}

// version is the image's tag.
func (b *build) version() string {
	name := b.tag[strings.LastIndex(b.tag, "/")+1:]
	_, tag, found := strings.Cut(name, ":")
	if !found {
		return "latest"
	}
	return tag
}

// created returns the time of SOURCE_DATE_EPOCH (https://reproducible-builds.org/specs/source-date-epoch/), which is the time of the image's creation
// whenever it is built.
func created() (*v1.Time, error) {
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		return &v1.Time{}, nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("read SOURCE_DATE_EPOCH: %w", err)
	}
	return &v1.Time{Time: time.Unix(seconds, 0).UTC()}, nil
}

// versionFlags are the linker's flags for a program that reports a version.
func versionFlags(version string) string {
	return "-ldflags=-s -w -X github.com/kiln-net/kiln/internal/version.Kiln=" + version
}

// compile runs go build, which has no library. It decides which programs are out of date. The outcome depends only on the sources and the version:
// not on paths, version control or a C compiler.
func (b *build) compile(ctx context.Context, architecture string) error {
	args := append([]string{"build", "-buildvcs=false", versionFlags(b.version()), "-o", b.work(architecture) + "/"}, prepare.CompilerFlags...)
	for _, p := range b.programs {
		args = append(args, p.pkg)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = b.source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+architecture)
	out := b.report.Output()
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run go build: %w", err)
	}
	return nil
}

// config is the configuration of the image.
func (b *build) config() v1.Config {
	return v1.Config{
		Entrypoint: []string{"/usr/bin/kiln"},
		Env:        []string{"PATH=" + machine.Path},
		Labels:     b.labels(),
	}
}

// labels are the annotations of the OCI image specification, as labels of the image.
func (b *build) labels() map[string]string {
	const prefix = "org.opencontainers.image."
	labels := map[string]string{
		prefix + "title":       "Kiln",
		prefix + "description": "OVN as the network of a Kubernetes cluster: operator, controller, agent, OVN and Open vSwitch",
		prefix + "source":      "https://github.com/kiln-net/kiln",
		prefix + "vendor":      "The Kiln Authors",
		prefix + "licenses":    "Apache-2.0",
		prefix + "version":     b.version(),
	}
	if b.revision != "" {
		labels[prefix+"revision"] = b.revision
	}
	if !b.created.IsZero() {
		labels[prefix+"created"] = b.created.Format(time.RFC3339)
	}
	return labels
}

// layers returns the two layers of an architecture's image: Debian's, the same for every build, and Kiln's programs.
func (b *build) layers(ctx context.Context, architecture string) ([]*archive.Layer, error) {
	base, err := archive.TarLayer(b.cache.ImageTar(architecture))
	if err != nil {
		return nil, err
	}
	work := b.work(architecture)
	entries := []archive.Entry{{Path: documentation + "/copyright", Source: filepath.Join(b.source, "LICENSE")}, pluginLink}
	contents := make([]sbom.Program, 0, len(b.programs))
	for _, p := range b.programs {
		file := filepath.Join(work, filepath.Base(p.pkg))
		entries = append(entries, archive.Entry{Path: p.path, Source: file})
		program, err := sbom.ReadProgram(file, p.path)
		if err != nil {
			return nil, err
		}
		contents = append(contents, program)
	}
	if err := b.document(ctx, architecture, contents); err != nil {
		return nil, err
	}
	for _, name := range []string{noticesFile, sbomFile} {
		entries = append(entries, archive.Entry{Path: documentation + "/" + name, Source: filepath.Join(work, name)})
	}
	// The Dockerfile uses both layers from this directory.
	if err := linkTo(filepath.Join(work, "debian.tar"), b.cache.ImageTar(architecture)); err != nil {
		return nil, err
	}
	ours, err := archive.WriteLayer(filepath.Join(work, "layer.tar"), entries)
	if err != nil {
		return nil, err
	}
	return []*archive.Layer{base, ours}, nil
}

// document writes the bill of materials and the notices to the work directory.
func (b *build) document(ctx context.Context, architecture string, programs []sbom.Program) error {
	packages, err := b.packages(architecture)
	if err != nil {
		return err
	}
	var bill bytes.Buffer
	document := sbom.Document{
		Name: "kiln-linux-" + architecture, Version: b.version(), Purpose: "CONTAINER", Created: b.created.Time, Packages: packages, Programs: programs,
	}
	if err := document.Write(&bill); err != nil {
		return err
	}
	notices, err := sbom.Notices(ctx, b.source, sbom.Modules(programs))
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{sbomFile: bill.Bytes(), noticesFile: notices} {
		if err := os.WriteFile(filepath.Join(b.work(architecture), name), content, 0o644); err != nil {
			return fmt.Errorf("write a document of the image: %w", err)
		}
	}
	return nil
}

// packages returns the Debian packages of an architecture's image.
func (b *build) packages(architecture string) ([]sbom.Package, error) {
	locked, err := debian.Lock(architecture)
	if err != nil {
		return nil, err
	}
	packages := make([]sbom.Package, 0, len(locked))
	for _, p := range locked {
		control, err := os.ReadFile(filepath.Join(b.cache.Path(prepared.ImageRoot(architecture)), debian.StatusDir, p.Name))
		if err != nil {
			return nil, fmt.Errorf("read the control data of a package: %w", err)
		}
		field := func(name string) string {
			_, rest, _ := strings.Cut("\n"+string(control), "\n"+name+": ")
			value, _, _ := strings.Cut(rest, "\n")
			return value
		}
		packages = append(packages, sbom.Package{
			Name: p.Name, Version: p.Version, Architecture: p.Architecture, SHA256: p.SHA256, Release: debian.Suite,
			Source: field("Source"), Homepage: field("Homepage"),
		})
	}
	return packages, nil
}

// linkTo makes a hard link to a file, or a copy where the file systems differ. A symbolic link would lead out of the Dockerfile's context.
func linkTo(link, file string) error {
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("replace a layer: %w", err)
	}
	if os.Link(file, link) == nil {
		return nil
	}
	from, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("open a layer: %w", err)
	}
	defer from.Close()
	to, err := os.Create(link)
	if err != nil {
		return fmt.Errorf("copy a layer: %w", err)
	}
	defer to.Close()
	if _, err := io.Copy(to, from); err != nil {
		return fmt.Errorf("copy a layer: %w", err)
	}
	return to.Close()
}
