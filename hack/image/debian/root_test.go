// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package debian

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestAPackageOfTheLockThatTheMirrorLacks uses a mirror on disk, which apt reaches as it reaches others.
func TestAPackageOfTheLockThatTheMirrorLacks(t *testing.T) {
	mirror := filepath.Join(t.TempDir(), "404") // a name with the number of an error
	deb, sum := makePackage(t, filepath.Join(mirror, "pool/main/k/kiln-test"))
	p := Package{Name: "kiln-test", Version: "1.0-1", Architecture: "all", SHA256: sum, Path: "pool/main/k/kiln-test/" + filepath.Base(deb)}
	m := mirrors{main: "file:" + mirror, security: "file:" + mirror}

	into := t.TempDir()
	if err := fetch(t.Context(), m, []Package{p}, into, io.Discard); err != nil {
		t.Fatal(err)
	}
	gone := p
	gone.Path = strings.Replace(p.Path, "1.0", "0.9", 1)
	if err := fetch(t.Context(), m, []Package{p, gone}, t.TempDir(), io.Discard); err == nil || !strings.Contains(err.Error(), "make image-lock") {
		t.Errorf("the error %v does not say what to run", err)
	}
	changed := p
	changed.SHA256 = hash
	if err := fetch(t.Context(), m, []Package{changed}, t.TempDir(), io.Discard); err == nil || !strings.Contains(err.Error(), "Hash Sum mismatch") {
		t.Errorf("another content than the lock file's: %v", err)
	}

	root := Root{}
	if err := root.add(t.Context(), p, debFile(into, p)); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"usr/share/kiln-test/data": "data\n", "usr/share/kiln-test/link": "->data", "usr/share/doc/kiln-test/copyright": "licence\n",
		"usr/share/doc/kiln-test/changelog": "", "usr/share/man/man1/kiln-test.1": "", "usr/bin/script": "",
	} {
		f := root[name]
		if got := string(f.content); got != want && "->"+f.link != want {
			t.Errorf("%s: %q and link %q; want %q", name, got, f.link, want)
		}
	}
	if status := string(root[StatusDir+"/kiln-test"].content); !strings.HasPrefix(status, "Package: kiln-test\nStatus: install ok installed\nVersion: 1.0-1\n") {
		t.Error(status)
	}
	other := p
	other.Version = "2.0"
	if err := root.add(t.Context(), other, debFile(into, p)); err == nil {
		t.Error("a package of another version than the lock file's is accepted")
	}
}

// makePackage makes a Debian package, and returns its path and SHA-256.
func makePackage(t *testing.T, into string) (deb, sum string) {
	t.Helper()
	tree := t.TempDir()
	for path, content := range map[string]string{
		"DEBIAN/control":                    "Package: kiln-test\nVersion: 1.0-1\nArchitecture: all\nMaintainer: none <none@example.org>\nDescription: test\n",
		"usr/share/kiln-test/data":          "data\n",
		"usr/share/doc/kiln-test/copyright": "licence\n",
		"usr/share/doc/kiln-test/changelog": "changes\n",
		"usr/share/man/man1/kiln-test.1":    "manual\n",
		"usr/bin/script":                    "#!/usr/bin/perl\n",
	} {
		if err := os.MkdirAll(filepath.Join(tree, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, path), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("data", filepath.Join(tree, "usr/share/kiln-test/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(into, 0o755); err != nil {
		t.Fatal(err)
	}
	deb = filepath.Join(into, "kiln-test_1.0-1_all.deb")
	if out, err := exec.Command("dpkg-deb", "--root-owner-group", "--build", tree, deb).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.Command("sha256sum", deb).Output()
	if err != nil {
		t.Fatal(err)
	}
	return deb, strings.Fields(string(out))[0]
}

func TestCheckOfTheRootFileSystem(t *testing.T) {
	program, err := os.ReadFile(findLinked(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		root Root
		want string // part of the error
	}{
		{"a program without its library", Root{"usr/bin/program": {kind: tar.TypeReg, content: program}}, "needs libc.so.6"},
		{"a link to a missing file", Root{"usr/bin/link": link("../lib/gone")}, "leads to ../lib/gone"},
		{"links through a directory that is a link", Root{"bin": link("usr/bin"), "usr/bin": directory(0o755), "usr/bin/a": link("/bin/b"), "usr/bin/b": text("")}, ""},
		{"links in a circle", Root{"a": link("b"), "b": link("a")}, "leads to"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.root.check()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v; want %q", err, c.want)
			}
		})
	}
}

// findLinked returns a program of this machine that is linked with libc.
func findLinked(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("cat")
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func TestWriteGivesTheSameBytesAndNoOwners(t *testing.T) {
	root := Root{"tmp": directory(0o777 | os.ModeSticky), "b": text("b"), "a": link("b")}
	var first, second bytes.Buffer
	if err := root.write(&first); err != nil {
		t.Fatal(err)
	}
	if err := root.write(&second); err != nil || !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Errorf("two archives differ (%v)", err)
	}
	r := tar.NewReader(&first)
	for _, want := range []string{"a", "b", "tmp/"} {
		h, err := r.Next()
		if err != nil || h.Name != want || h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 0 {
			t.Errorf("%+v (%v); want %s", h, err, want)
		}
		if want == "tmp/" && h.Mode != 0o1777 {
			t.Errorf("mode of /tmp: %o", h.Mode)
		}
	}
}
