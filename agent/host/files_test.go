// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// names returns the names in a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must.Succeed(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// broken is content that can be compared, and cannot be copied.
type broken struct {
	*strings.Reader
	err error
}

func (b *broken) WriteTo(io.Writer) (int64, error) { return 0, b.err }

func TestReplace(t *testing.T) {
	long := strings.Repeat("x", chunk)
	failed := errors.New("the disk is full")
	for name, tt := range map[string]struct {
		before  string // in the file; missing if empty
		link    bool   // the file is a symbolic link to another file with this content
		dir     bool   // a directory is in the way
		content io.ReadSeeker
		want    string
		writes  bool
		fails   bool
	}{
		"no file":                   {content: strings.NewReader("new"), want: "new", writes: true},
		"the same":                  {before: "same", content: strings.NewReader("same"), want: "same"},
		"the same in two chunks":    {before: long + "y", content: strings.NewReader(long + "y"), want: long + "y"},
		"the same in a whole chunk": {before: long, content: strings.NewReader(long), want: long},
		"another":                   {before: "old", content: strings.NewReader("new"), want: "new", writes: true},
		"another in the last chunk": {before: long + "y", content: strings.NewReader(long + "z"), want: long + "z", writes: true},
		"shorter by a chunk":        {before: long + long, content: strings.NewReader(long), want: long, writes: true},
		"longer":                    {before: long, content: strings.NewReader(long + "y"), want: long + "y", writes: true},
		"an empty one":              {before: "old", content: strings.NewReader(""), writes: true},
		"a link to another":         {before: "old", link: true, content: strings.NewReader("new"), want: "new", writes: true},
		"a link to the same":        {before: "same", link: true, content: strings.NewReader("same"), want: "same", writes: true},
		"a copy that fails":         {before: "old", content: &broken{strings.NewReader("new"), failed}, want: "old", fails: true},
		"a directory in the way":    {dir: true, content: strings.NewReader("new"), fails: true},
		"content that cannot be read": {before: "old", content: struct {
			io.Reader
			io.Seeker
		}{iotest.ErrReader(failed), nil}, want: "old", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "target")
			path := filepath.Join(dir, "program")
			switch {
			case tt.dir:
				must.Succeed(t, os.MkdirAll(filepath.Join(path, "content"), 0o755))
			case tt.link:
				must.Succeed(t, errors.Join(os.WriteFile(elsewhere, []byte(tt.before), 0o600), os.Symlink(elsewhere, path)))
			case tt.before != "":
				must.Succeed(t, os.WriteFile(path, []byte(tt.before), 0o600))
			}
			before, _ := os.Lstat(path)
			if err := replace(path, tt.content, 0o755); (err != nil) != tt.fails {
				t.Errorf("error %v", err)
			}
			if left := names(t, dir); !slices.Equal(left, []string{"program"}) {
				t.Errorf("left in the directory: %v", left)
			}
			after, err := os.Lstat(path)
			must.Succeed(t, err)
			if wrote := before == nil || !os.SameFile(before, after); wrote != tt.writes {
				t.Errorf("a new file: %v", wrote)
			}
			if content, _ := os.ReadFile(path); string(content) != tt.want {
				t.Errorf("%d bytes, want %d", len(content), len(tt.want))
			}
			if tt.writes && after.Mode() != 0o755 {
				t.Errorf("mode %v", after.Mode())
			}
			if content, _ := os.ReadFile(elsewhere); tt.link && string(content) != tt.before {
				t.Errorf("the target of the link has %q", content)
			}
		})
	}
}

// TestInstallNeedsLittleMemory compares and copies a file that is larger than everything that the test may allocate.
func TestInstallNeedsLittleMemory(t *testing.T) {
	const size = 64 << 20
	dir := t.TempDir()
	source, path := filepath.Join(dir, "source"), filepath.Join(dir, "program")
	must.Succeed(t, errors.Join(os.WriteFile(source, []byte("first"), 0o600), os.Truncate(source, size))) // without blocks for the rest
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 2 { // the second finds the same content
		must.Succeed(t, install(source, path))
	}
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > size/8 {
		t.Errorf("allocated %d bytes for a program of %d", allocated, size)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != size {
		t.Errorf("installed %v (%v)", info, err)
	}
}

func TestLink(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "completer")
	expect := func(target string) {
		t.Helper()
		must.Succeed(t, link(path, "program"))
		if got, err := os.Readlink(path); err != nil || got != target {
			t.Errorf("a link to %q (%v)", got, err)
		}
		if left := names(t, dir); !slices.Equal(left, []string{"completer"}) {
			t.Errorf("left in the directory: %v", left)
		}
	}
	expect("program")
	first, err := os.Lstat(path)
	must.Succeed(t, err)
	expect("program")
	if second, _ := os.Lstat(path); !os.SameFile(first, second) {
		t.Error("the same link was made again")
	}
	must.Succeed(t, errors.Join(os.Remove(path), os.Symlink("/etc/passwd", path)))
	expect("program")
	must.Succeed(t, errors.Join(os.Remove(path), os.WriteFile(path, []byte("a script"), 0o755)))
	expect("program")
	must.Succeed(t, errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "content"), 0o755)))
	if err := link(path, "program"); err == nil {
		t.Error("a directory was replaced")
	}
	if left := names(t, dir); !slices.Equal(left, []string{"completer"}) {
		t.Errorf("left in the directory: %v", left)
	}
}

// TestUnfinishedFiles removes what a killed agent left, and nothing of another installation in the same directory.
func TestUnfinishedFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".kiln-kubectl-ko-1", ".kiln-kube-ovn-2", ".kiln-kubectl_complete-ko", "kubectl-ko"} {
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	must.Succeed(t, removeUnfinished(dir, "kubectl"))
	if left, want := names(t, dir), []string{".kiln-kube-ovn-2", "kubectl-ko"}; !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
	must.Succeed(t, removeUnfinished(dir, ""))
	if left, want := names(t, dir), []string{"kubectl-ko"}; !slices.Equal(left, want) {
		t.Errorf("left %v, want %v", left, want)
	}
}
