// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Command release completes the directory of a release: kubectl-ko for all platforms with its krew manifest, the bills of materials, the image, and
// the checksums of all files. The same sources give the same bytes.
package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kiln-net/kiln/hack/image/archive"
	"github.com/kiln-net/kiln/hack/image/debian"
	"github.com/kiln-net/kiln/hack/image/sbom"
	"github.com/kiln-net/kiln/hack/lab/prepare"
)

// release is one run of the command.
type release struct {
	version, url string
	parts        string // directory with kiln.oci.tar and image/ of `image layout`, and bundle/
	dist         string
	source       string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := &release{}
	cmd := &cobra.Command{
		Use: "release", Short: "Complete the directory of a release", Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return r.run(cmd.Context()) },
	}
	cmd.Flags().StringVar(&r.version, "version", "", "version: v1.2.3")
	cmd.Flags().StringVar(&r.url, "url", "https://github.com/kiln-net/kiln/releases/download", "URL of the directory that has a directory of files for each version")
	cmd.Flags().StringVar(&r.parts, "parts", "_output/release", "directory with kiln.oci.tar and image/ of `image layout`, and bundle/")
	cmd.Flags().StringVar(&r.dist, "dist", "dist", "directory of the release")
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func (r *release) run(ctx context.Context) error {
	if !versionPattern.MatchString(r.version) {
		return fmt.Errorf("%q is no version of a release: it has the form v1.2.3 or v1.2.3-rc.1", r.version)
	}
	var err error
	if r.source, err = prepare.Source(); err != nil {
		return err
	}
	if err := r.addImage(); err != nil {
		return err
	}
	if err := r.addBundle(); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "kiln-release-")
	if err != nil {
		return fmt.Errorf("make a directory to build in: %w", err)
	}
	defer os.RemoveAll(work)
	archives, err := r.plugins(ctx, work)
	if err != nil {
		return err
	}
	manifest, err := krew(r.version, r.url, archives)
	if err != nil {
		return err
	}
	if err := r.write("ko.yaml", manifest); err != nil {
		return err
	}
	sums, err := checksums(r.dist)
	if err != nil {
		return err
	}
	return r.write(sumsFile, sums)
}

func (r *release) write(name string, content []byte) error {
	if err := os.WriteFile(filepath.Join(r.dist, name), content, 0o644); err != nil {
		return fmt.Errorf("write a file of the release: %w", err)
	}
	return nil
}

// addImage adds the image and its bills of materials.
func (r *release) addImage() error {
	files := map[string]string{"kiln.oci.tar": "kiln-" + r.version + ".oci.tar"}
	for _, architecture := range debian.Architectures {
		files[filepath.Join("image", architecture, "kiln.spdx.json")] = "kiln-" + r.version + "-linux-" + architecture + ".spdx.json"
	}
	for from, to := range files {
		content, err := os.ReadFile(filepath.Join(r.parts, from))
		if err != nil {
			return fmt.Errorf("read a part of the image: %w", err)
		}
		if err := r.write(to, content); err != nil {
			return err
		}
	}
	return nil
}

// plugins builds kubectl-ko for all platforms, and adds their archives and their bill of materials. It returns the archives.
func (r *release) plugins(ctx context.Context, work string) ([]plugin, error) {
	var all []plugin
	var programs []sbom.Program
	for _, p := range platforms {
		dir := filepath.Join(work, p.system+"-"+p.architecture)
		name := "kubectl-ko"
		if p.system == "windows" {
			name += ".exe"
		}
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false",
			"-ldflags=-s -w -X github.com/kiln-net/kiln/internal/version.Kiln="+r.version, "-o", filepath.Join(dir, name), "./cmd/kubectl-ko")
		cmd.Dir, cmd.Stdout, cmd.Stderr = r.source, os.Stderr, os.Stderr
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.system, "GOARCH="+p.architecture)
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("build kubectl-ko for %s/%s: %w", p.system, p.architecture, err)
		}
		program, err := sbom.ReadProgram(filepath.Join(dir, name), fmt.Sprintf("/%s/%s/%s", p.system, p.architecture, name))
		if err != nil {
			return nil, err
		}
		programs = append(programs, program)
		p.binary, p.archive = name, fmt.Sprintf("kubectl-ko-%s-%s-%s.tar.gz", r.version, p.system, p.architecture)
		all = append(all, p)
	}
	notices, err := sbom.Notices(ctx, r.source, sbom.Modules(programs))
	if err != nil {
		return nil, err
	}
	for i := range all {
		if err := r.pack(&all[i], filepath.Join(work, all[i].system+"-"+all[i].architecture), notices); err != nil {
			return nil, err
		}
	}
	created, err := sourceDate()
	if err != nil {
		return nil, err
	}
	var bill bytes.Buffer
	document := sbom.Document{Name: "kubectl-ko", Version: r.version, Purpose: "ARCHIVE", Created: created, Programs: programs}
	if err := document.Write(&bill); err != nil {
		return nil, err
	}
	return all, r.write("kubectl-ko-"+r.version+".spdx.json", bill.Bytes())
}

// sourceDate returns the time of SOURCE_DATE_EPOCH.
func sourceDate() (time.Time, error) {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH must have the time of the release's commit: %w", err)
	}
	return time.Unix(seconds, 0), nil
}

// pack writes a plugin's archive and sets its checksum.
func (r *release) pack(p *plugin, dir string, notices []byte) error {
	noticesFile := filepath.Join(dir, "THIRD-PARTY-NOTICES")
	if err := os.WriteFile(noticesFile, notices, 0o644); err != nil {
		return fmt.Errorf("write the notices: %w", err)
	}
	tarFile := filepath.Join(dir, "plugin.tar")
	_, err := archive.WriteLayer(tarFile, []archive.Entry{
		{Path: "/" + p.binary, Source: filepath.Join(dir, p.binary)}, {Path: "/LICENSE", Source: filepath.Join(r.source, "LICENSE")},
		{Path: "/THIRD-PARTY-NOTICES", Source: noticesFile},
	})
	if err != nil {
		return err
	}
	p.sha256, err = r.compress(tarFile, p.archive)
	return err
}

// addBundle adds the bundle for the Operator Lifecycle Manager as an archive.
func (r *release) addBundle() error {
	dir := filepath.Join(r.parts, "bundle")
	var entries []archive.Entry
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			entries = append(entries, archive.Entry{Path: strings.TrimPrefix(file, r.parts), Source: file})
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list the bundle: %w", err)
	}
	tarFile := filepath.Join(r.parts, "bundle.tar")
	if _, err := archive.WriteLayer(tarFile, entries); err != nil {
		return err
	}
	_, err = r.compress(tarFile, "kiln-"+r.version+"-bundle.tar.gz")
	return err
}

// compress adds a tar archive to the release, compressed, and returns its SHA-256.
func (r *release) compress(tarFile, name string) (string, error) {
	content, err := os.ReadFile(tarFile)
	if err != nil {
		return "", fmt.Errorf("read an archive: %w", err)
	}
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	if _, err := w.Write(content); err != nil {
		return "", fmt.Errorf("compress an archive: %w", err)
	}
	if err := w.Close(); err != nil {
		return "", fmt.Errorf("compress an archive: %w", err)
	}
	sum := sha256.Sum256(compressed.Bytes())
	return hex.EncodeToString(sum[:]), r.write(name, compressed.Bytes())
}

// sumsFile is the file of all checksums, in the format of sha256sum(1).
const sumsFile = "SHA256SUMS"

func checksums(dist string) ([]byte, error) {
	entries, err := os.ReadDir(dist)
	if err != nil {
		return nil, fmt.Errorf("list the files of the release: %w", err)
	}
	var out []byte
	for _, entry := range entries {
		if !entry.Type().IsRegular() || entry.Name() == sumsFile {
			continue
		}
		f, err := os.Open(filepath.Join(dist, entry.Name()))
		if err != nil {
			return nil, fmt.Errorf("read a file of the release: %w", err)
		}
		h := sha256.New()
		_, err = io.Copy(h, f)
		_ = f.Close()
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", entry.Name(), err)
		}
		out = fmt.Appendf(out, "%s  %s\n", hex.EncodeToString(h.Sum(nil)), entry.Name())
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s is empty", strings.TrimSpace(dist))
	}
	return out, nil
}
