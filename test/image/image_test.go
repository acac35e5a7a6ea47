// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package image tests the image as users get it: two complete builds are identical, it contains the required files, and its arm64 programs run. The tests take
// minutes, so they run in `make test-image` and not in `make test`.
package image

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/kiln-net/kiln/hack/image/archive"
	"github.com/kiln-net/kiln/hack/image/debian"
	"github.com/kiln-net/kiln/hack/lab/prepare"
)

// layout builds the image from the sources in a directory, with a new cache, and returns the OCI layout's path.
func layout(t *testing.T, source string) string {
	t.Helper()
	output := filepath.Join(t.TempDir(), "kiln.oci.tar")
	cmd := exec.CommandContext(t.Context(), "go", "run", "./hack/image", "layout", "--tag", "kiln.local/kiln:test", "--output", output)
	cmd.Dir, cmd.Stderr = source, os.Stderr
	cmd.Env = append(os.Environ(), "KILN_CACHE="+t.TempDir())
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return output
}

// copySources copies the files of the repository to another directory, as another clone has them.
func copySources(t *testing.T, source string) string {
	t.Helper()
	into := t.TempDir()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = source
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(source, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted and not committed yet
		}
		if err == nil {
			err = os.MkdirAll(filepath.Join(into, filepath.Dir(name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(into, name), content, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return into
}

func sum(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func TestImage(t *testing.T) {
	source, err := prepare.Source()
	if err != nil {
		t.Fatal(err)
	}
	first := layout(t, source)
	second := layout(t, copySources(t, source))
	if a, b := sum(t, first), sum(t, second); a != b {
		t.Errorf("builds in two directories differ: %s has %s, %s has %s", first, a, second, b)
	}
	index, err := archive.ReadLayout(first, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != len(debian.Architectures) {
		t.Fatalf("the image has %d platforms", len(manifest.Manifests))
	}
	for _, m := range manifest.Manifests {
		t.Run(m.Platform.Architecture, func(t *testing.T) {
			img, err := index.Image(m.Digest)
			if err != nil {
				t.Fatal(err)
			}
			root := t.TempDir()
			checkContents(t, img, root)
			checkSize(t, img)
			checkPrograms(t, m.Platform.Architecture, root)
		})
	}
}

// absent are names of programs, and directories, that the image must not contain.
var absent = map[string]bool{
	"apt": true, "apt-get": true, "dpkg": true, "perl": true, "python3": true, "bash": true, "systemctl": true, "openssl": true, "ovs-ctl": true, "ovn-ctl": true,
	"usr/share/man": true, "usr/share/locale": true, "usr/share/info": true, "usr/lib/systemd": true, "usr/lib/python3": true, "var/lib/apt": true,
}

// checkContents checks the files of an image while it unpacks them.
func checkContents(t *testing.T, img v1.Image, root string) {
	t.Helper()
	files := mutate.Extract(img)
	defer files.Close()
	into, err := os.OpenRoot(root)
	if err != nil {
		t.Fatal(err)
	}
	defer into.Close()
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(h.Name, "/")
		if absent[path.Base(name)] && h.Typeflag != tar.TypeDir || absent[name] {
			t.Errorf("the image contains /%s", name)
		}
		if rest, doc := strings.CutPrefix(name, "usr/share/doc/"); doc && strings.Contains(rest, "/") && !strings.HasPrefix(rest, "kiln/") && path.Base(rest) != "copyright" {
			t.Errorf("the image contains documentation: /%s", name)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Mode&0o6000 != 0 || h.Mode&0o002 != 0 && h.Mode&0o1000 == 0 && h.Typeflag != tar.TypeSymlink {
			t.Errorf("/%s belongs to %d:%d and has mode %o", name, h.Uid, h.Gid, h.Mode)
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = into.MkdirAll(name, 0o755)
		case tar.TypeSymlink:
			err = into.Symlink(strings.TrimPrefix(h.Linkname, "/"), name)
		case tar.TypeReg:
			err = writeFile(into, name, r, fs.FileMode(h.Mode).Perm())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func writeFile(root *os.Root, name string, content io.Reader, mode fs.FileMode) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// largest is the limit of the compressed image. docs/operations/image.md states the size.
const largest = 55 << 20

func checkSize(t *testing.T, img v1.Image) {
	t.Helper()
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	total := manifest.Config.Size
	for _, l := range manifest.Layers {
		total += l.Size
	}
	t.Logf("compressed size: %.1f MB", float64(total)/1e6)
	if total > largest {
		t.Errorf("the compressed image has %d bytes, more than %d", total, largest)
	}
}

// checkPrograms runs programs of an image's files with qemu-user. nft and conntrack are left out: they open netfilter's netlink socket first, which qemu-user
// does not have.
func checkPrograms(t *testing.T, architecture, root string) {
	t.Helper()
	emulators := map[string]string{"amd64": "qemu-x86_64", "arm64": "qemu-aarch64"}
	for _, c := range []struct {
		program     string
		args        []string
		env, stdin  string
		wantInLines string
	}{
		{"usr/bin/kiln", []string{"version"}, "", "", "kiln test linux/" + architecture},
		{"opt/kiln/cni/kube-ovn", nil, "CNI_COMMAND=VERSION", `{"cniVersion":"1.1.0"}`, `"supportedVersions"`},
		{"opt/kiln/cni/loopback", nil, "CNI_COMMAND=VERSION", `{"cniVersion":"1.0.0"}`, `"supportedVersions"`},
		{"opt/kiln/cni/portmap", nil, "CNI_COMMAND=VERSION", `{"cniVersion":"1.0.0"}`, `"supportedVersions"`},
		{"usr/lib/openvswitch-switch/ovs-vswitchd", []string{"--version"}, "", "", "ovs-vswitchd (Open vSwitch) "},
		{"usr/sbin/ovsdb-server", []string{"--version"}, "", "", "ovsdb-server (Open vSwitch) "},
		{"usr/bin/ovsdb-tool", []string{"--version"}, "", "", "ovsdb-tool (Open vSwitch) "},
		{"usr/bin/ovs-ofctl", []string{"--version"}, "", "", "ovs-ofctl (Open vSwitch) "},
		{"usr/bin/ovn-northd", []string{"--version"}, "", "", "ovn-northd "},
		{"usr/bin/ovn-controller", []string{"--version"}, "", "", "ovn-controller "},
		{"usr/bin/ovn-nbctl", []string{"--version"}, "", "", "ovn-nbctl "},
		{"usr/bin/ip", []string{"-V"}, "", "", "ip utility"},
		{"usr/bin/tcpdump", []string{"--version"}, "", "", "libpcap version"},
		{"usr/bin/busybox", []string{"sh", "-c", "echo $((6 * 7))"}, "", "", "42"},
	} {
		cmd := exec.CommandContext(t.Context(), emulators[architecture], append([]string{"-L", root, filepath.Join(root, c.program)}, c.args...)...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH=", c.env)
		cmd.Stdin = strings.NewReader(c.stdin)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), c.wantInLines) {
			t.Errorf("%s: %v, %s; want %q", c.program, err, out, c.wantInLines)
		}
	}
}
