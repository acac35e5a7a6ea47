// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// file is a regular file, symbolic link or directory of a Root.
type file struct {
	kind    byte // tar.TypeReg, tar.TypeSymlink or tar.TypeDir
	mode    fs.FileMode
	link    string
	content []byte
}

// Root is a root file system: files by their paths without a leading slash. All files belong to root.
type Root map[string]file

// Build writes the root file system of the architecture's lock file as a tar archive. It downloads the packages to the directory work.
func Build(ctx context.Context, architecture, archive, work string, log io.Writer) error {
	packages, err := Lock(architecture)
	if err != nil {
		return err
	}
	m, err := findMirrors(ctx)
	if err != nil {
		return err
	}
	if err := fetch(ctx, m, packages, work, log); err != nil {
		return err
	}
	root := Root{}
	for _, p := range packages {
		if err := root.add(ctx, p, debFile(work, p)); err != nil {
			return err
		}
	}
	if err := root.complete(); err != nil {
		return err
	}
	if err := root.check(); err != nil {
		return err
	}
	out, err := os.Create(archive)
	if err != nil {
		return fmt.Errorf("create the archive of the root file system: %w", err)
	}
	defer out.Close()
	if err := root.write(out); err != nil {
		return fmt.Errorf("write the archive of the root file system: %w", err)
	}
	return out.Close()
}

// StatusDir is the directory of the control data of packages, one file each. Scanners of images read it in images without dpkg.
const StatusDir = "var/lib/dpkg/status.d"

// add adds the files of a package, and its control data. dpkg-deb(1) reads every version and compression of the format deb(5).
func (r Root) add(ctx context.Context, p Package, deb string) error {
	control, err := exec.CommandContext(ctx, "dpkg-deb", "--field", deb).Output()
	if err != nil {
		return fmt.Errorf("read the control data of %s: %w", filepath.Base(deb), err)
	}
	for _, line := range []string{"Package: " + p.Name, "Version: " + p.Version, "Architecture: " + p.Architecture} {
		if !slices.Contains(strings.Split(string(control), "\n"), line) {
			return fmt.Errorf("%s has another name, version or architecture than the lock file: it lacks %q", filepath.Base(deb), line)
		}
	}
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	files, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("extract %s: %w", p.Name, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("extract %s: %w", p.Name, err)
	}
	err = r.extract(files)
	if err == nil {
		_, err = io.Copy(io.Discard, files) // the padding of the archive
	}
	if waited := cmd.Wait(); err == nil {
		err = waited
	}
	if err != nil {
		return fmt.Errorf("extract %s: %w", p.Name, err)
	}
	status := strings.Replace(string(control), "\n", "\nStatus: install ok installed\n", 1) // after the name, as in dpkg's own file
	r[path.Join(StatusDir, p.Name)] = text(status)
	return nil
}

func (r Root) extract(files io.Reader) error {
	for archive := tar.NewReader(files); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Clean(strings.TrimPrefix(h.Name, "/"))
		if name == "." || unwanted(name) {
			continue
		}
		f := file{kind: h.Typeflag, mode: h.FileInfo().Mode().Perm(), link: h.Linkname}
		switch h.Typeflag {
		case tar.TypeReg:
			if f.content, err = io.ReadAll(archive); err != nil {
				return err
			}
			if bytes.HasPrefix(f.content, []byte("#!")) { // the image runs no scripts
				continue
			}
		case tar.TypeLink:
			f = r[path.Clean(strings.TrimPrefix(h.Linkname, "/"))]
		case tar.TypeDir:
			if there, ok := r[name]; ok && there.kind != tar.TypeDir {
				continue // a symbolic link to a directory stays
			}
		case tar.TypeSymlink:
		default:
			return fmt.Errorf("%s is a file of the unexpected type %q", name, h.Typeflag)
		}
		if f.kind != 0 {
			r[name] = f
		}
	}
}

// unwantedPaths are files and directories of packages to leave out: patterns of path.Match.
var unwantedPaths = []string{
	"boot", "etc/apparmor.d", "etc/ca-certificates", "etc/cron*", "etc/default", "etc/dpkg", "etc/init.d", "etc/issue*", "etc/logrotate.d", "etc/network",
	"etc/pam.d", "etc/profile.d", "etc/rc*", "etc/skel", "etc/systemd", "etc/update-motd.d", "home", "media", "mnt", "srv", "usr/bin/ovn-ic*", "usr/games",
	"usr/include", "usr/lib/*/*.a", "usr/lib/*/audit", "usr/lib/*/gconv", "usr/lib/dracut", "usr/lib/pcrlock.d", "usr/lib/python3*", "usr/lib/sysctl.d",
	"usr/lib/systemd", "usr/lib/tmpfiles.d", "usr/lib/udev", "usr/local", "usr/share/apport", "usr/share/base-files", "usr/share/bash-completion", "usr/share/bug",
	"usr/share/dict", "usr/share/doc-base", "usr/share/gcc", "usr/share/gdb", "usr/share/info", "usr/share/initramfs-tools", "usr/share/lintian",
	"usr/share/locale", "usr/share/man", "usr/share/menu", "usr/share/metainfo", "usr/share/openvswitch/bugtool-plugins", "usr/share/openvswitch/python",
	"usr/share/openvswitch/scripts", "usr/share/ovn/bugtool-plugins", "usr/share/ovn/scripts", "usr/share/perl5", "usr/share/pixmaps", "usr/share/polkit-1",
	"usr/share/python3", "usr/share/zsh", "usr/src", "var/backups", "var/cache", "var/lib/dpkg", "var/local", "var/lock", "var/mail", "var/run", "var/spool",
}

// unwanted reports whether a file or one of the directories above it matches one of unwantedPaths, or is documentation other than a package's copyright.
func unwanted(name string) bool {
	if rest, doc := strings.CutPrefix(name, "usr/share/doc/"); doc {
		_, inside, nested := strings.Cut(rest, "/")
		return nested && inside != "copyright"
	}
	for prefix := name; prefix != "."; prefix = path.Dir(prefix) {
		for _, pattern := range unwantedPaths {
			if match, err := path.Match(pattern, prefix); match && err == nil {
				return true
			}
		}
	}
	return false
}

func text(content string) file {
	return file{kind: tar.TypeReg, mode: 0o644, content: []byte(content)}
}

func directory(mode fs.FileMode) file { return file{kind: tar.TypeDir, mode: mode} }

func link(target string) file { return file{kind: tar.TypeSymlink, mode: 0o777, link: target} }

// write writes the files in the order of their paths, without times and owners.
func (r Root) write(to io.Writer) error {
	w := tar.NewWriter(to)
	for _, name := range slices.Sorted(maps.Keys(r)) {
		f := r[name]
		h := &tar.Header{Typeflag: f.kind, Name: name, Linkname: f.link, Mode: int64(f.mode.Perm()), Size: int64(len(f.content)), Format: tar.FormatPAX}
		if f.mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		if f.kind == tar.TypeDir {
			h.Name += "/"
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(f.content); err != nil {
			return err
		}
	}
	return w.Close()
}
