// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPermittedPackages(t *testing.T) {
	status := parseStatus([]byte(`base-files	installed	yes	required		awk, 
coreutils:amd64	installed	yes	required		
mawk	installed	no	required	awk	, libc6 (>= 2.34)
gawk	installed	no	optional	awk	, libsigsegv2
libc6:amd64	installed	no	optional	libc6-2.36	, libgcc-s1
libgcc-s1:amd64	installed	no	optional	libgcc1 (= 1:12.2.0)	, gcc-12-base (= 12.2.0)
mmdebstrap	installed	no	optional		, apt, perl:any, python3 | perl-base
apt:amd64	installed	no	important		, apt-transport-x
perl	installed	no	standard		, perl-base
perl-base	installed	yes	required		
nftables	installed	no	important		, libc6
iputils-ping	config-files	no	important		
`))
	for _, c := range []struct {
		name        string
		names, want []string
	}{
		{
			"nothing but what every Debian has, with its dependencies", nil,
			[]string{"base-files", "coreutils:amd64", "mawk", "perl-base", "libc6:amd64", "libgcc-s1:amd64"},
		},
		{
			"a package brings its dependencies: the first alternative that is installed", []string{"mmdebstrap"},
			[]string{"mmdebstrap", "base-files", "coreutils:amd64", "mawk", "perl-base", "apt:amd64", "perl", "libc6:amd64", "libgcc-s1:amd64"},
		},
		{
			"a package that is not installed brings nothing", []string{"iputils-ping"},
			[]string{"base-files", "coreutils:amd64", "mawk", "perl-base", "libc6:amd64", "libgcc-s1:amd64"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, closure(status, c.names)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestProgramsOfPackages(t *testing.T) {
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(root, "usr/bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bash", "mawk", "nft", "stray"} {
		if err := os.WriteFile(filepath.Join(bin, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"bin": "usr/bin", "usr/bin/awk": filepath.Join(root, "alternatives-awk"), "alternatives-awk": "usr/bin/mawk", "usr/bin/hidden": "stray", "usr/bin/dangling": "none", "usr/bin/X11": ".",
	} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	list := root + "/.\n" + root + "/bin\n" + root + "/bin/bash\n\n" + root + "/usr/bin/mawk\n" + root + "/usr/bin/dangling\n" + root + "/usr/bin/X11\n"
	got, err := programsOf([]byte(list), []string{bin})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, name := range []string{"bash", "mawk", "awk"} { // nft, stray and hidden are in no package of the list
		want[name] = filepath.Join(bin, name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	links := filepath.Join(root, "links")
	for _, programs := range []map[string]string{{"nft": "/old/nft", "bash": "/old/bash"}, got, got} {
		if err := linkPrograms(links, programs); err != nil {
			t.Fatal(err)
		}
		made := map[string]string{}
		entries, err := os.ReadDir(links)
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if made[entry.Name()], err = os.Readlink(filepath.Join(links, entry.Name())); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(programs, made); diff != "" {
			t.Error(diff)
		}
	}
}
