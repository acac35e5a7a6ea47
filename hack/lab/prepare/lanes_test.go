// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package prepare

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/kiln-net/kiln/hack/lab/cache"
	"github.com/kiln-net/kiln/hack/lab/progress"
)

func options(t *testing.T) Options {
	t.Helper()
	t.Setenv("KILN_CACHE", t.TempDir())
	dir, err := cache.Open()
	if err != nil {
		t.Fatal(err)
	}
	return Options{Cache: dir, Report: progress.New(io.Discard)}
}

// fake is an artifact of one file, whose build runs f.
func fake(name string, f func(context.Context) error) cache.Artifact {
	return cache.Artifact{
		Name: name, Title: name, Outputs: []string{name}, Inputs: func() ([]string, error) { return nil, nil },
		Build: func(ctx context.Context, into string) error {
			return errors.Join(f(ctx), os.WriteFile(filepath.Join(into, name), nil, 0o644))
		},
	}
}

func TestLanesAreBuiltSideBySide(t *testing.T) {
	first, second := make(chan struct{}), make(chan struct{})
	meet := func(mine chan<- struct{}, other <-chan struct{}) func(context.Context) error {
		return func(ctx context.Context) error {
			close(mine)
			select {
			case <-other:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	o := options(t)
	compiled := false
	err := lanes{
		{fake("programs", meet(first, second)), fake("images", func(context.Context) error { compiled = true; return nil })},
		{fake("packages", meet(second, first))},
	}.build(t.Context(), o)
	if err != nil || !compiled {
		t.Fatalf("the second artifact of a lane is built: %t (%v)", compiled, err)
	}
	for _, name := range []string{"programs", "images", "packages"} {
		if _, err := os.Stat(o.Cache.Path(name)); err != nil {
			t.Error(err)
		}
	}
}

func TestAFailedLaneEndsTheOthers(t *testing.T) {
	full := errors.New("disk full")
	err := lanes{
		{fake("programs", func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }), fake("images", func(context.Context) error {
			t.Error("an artifact is built after a failure")
			return nil
		})},
		{fake("packages", func(context.Context) error { return full })},
	}.build(t.Context(), options(t))
	if !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
}
