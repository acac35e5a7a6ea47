// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package cache

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/kiln-net/kiln/hack/lab/progress"
)

func TestEnsureBuildsOnlyWhenInputsChangeOrOutputsAreMissing(t *testing.T) {
	t.Setenv("KILN_CACHE", t.TempDir())
	dir, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	builds, input := 0, "v1"
	var failure error
	a := Artifact{
		Name: "tool", Title: "build tool", Outputs: []string{"bin/tool"},
		Inputs: func() ([]string, error) { return []string{input}, nil },
		Build: func(_ context.Context, into string) error {
			builds++
			if failure != nil {
				return failure
			}
			if err := os.Mkdir(filepath.Join(into, "bin"), 0o755); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(into, "bin/tool"), []byte(input), 0o755)
		},
	}
	ensure := func(wantBuilds int, wantContent string) {
		t.Helper()
		err := dir.Ensure(context.Background(), progress.New(io.Discard), a)
		if !errors.Is(err, failure) {
			t.Fatalf("got error %v, want %v", err, failure)
		}
		content, err := os.ReadFile(dir.Path("bin/tool"))
		if err != nil || string(content) != wantContent || builds != wantBuilds {
			t.Fatalf("content %q (%v) after %d builds, want %q after %d", content, err, builds, wantContent, wantBuilds)
		}
	}
	ensure(1, "v1")
	ensure(1, "v1")
	input = "v2"
	inUse := "nodes run"
	a.InUse = func() (string, error) { return inUse, nil }
	ensure(1, "v1")
	inUse = ""
	failure = errors.New("compiler says no")
	ensure(2, "v1") // a failed build leaves the previous output in place
	failure = nil
	ensure(3, "v2")
	if err := os.RemoveAll(dir.Bin()); err != nil {
		t.Fatal(err)
	}
	ensure(4, "v2")
	left, err := filepath.Glob(dir.Path(".tmp-*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left in the cache: %v (%v)", left, err)
	}
}

func TestHashDistinguishesLists(t *testing.T) {
	if hash([]string{"a", "b"}) == hash([]string{"ab"}) || hash([]string{"a\n1:b"}) == hash([]string{"a", "b"}) {
		t.Error("two lists of inputs have one hash")
	}
}
