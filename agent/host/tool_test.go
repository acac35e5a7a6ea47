// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/events"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// newTool returns a tool with content, and the directory in which it is installed.
func newTool(t *testing.T, content string) (*Tool, string) {
	t.Helper()
	source, dir := filepath.Join(t.TempDir(), "kiln"), t.TempDir()
	must.Succeed(t, os.WriteFile(source, []byte(content), 0o755))
	link := filepath.Join(filepath.Dir(source), toolName) // as in the image
	must.Succeed(t, os.Symlink("kiln", link))
	return &Tool{Source: link, Directory: dir, Node: "node-1"}, dir
}

func TestTool(t *testing.T) {
	tool, dir := newTool(t, "new")
	script, elsewhere := filepath.Join(t.TempDir(), "script"), filepath.Join(dir, "other")
	must.Succeed(t, errors.Join(
		os.WriteFile(script, []byte("of Kube-OVN"), 0o755), os.Symlink(script, filepath.Join(dir, toolName)),
		os.WriteFile(filepath.Join(dir, ".kiln-kubectl-ko-17"), []byte("half of"), 0o600), // left by an agent that was killed
		os.WriteFile(filepath.Join(dir, ".kiln-kubectl_complete-ko"), nil, 0o600),
		os.WriteFile(elsewhere, nil, 0o600),
	))
	for range 2 {
		must.Succeed(t, tool.Install())
		for _, name := range []string{toolName, toolCompleter} {
			if content, err := os.ReadFile(filepath.Join(dir, name)); string(content) != "new" {
				t.Errorf("%s: %q, %v", name, content, err)
			}
		}
		if info, err := os.Lstat(filepath.Join(dir, toolName)); err != nil || info.Mode() != 0o755 {
			t.Errorf("the program is %v, %v", info, err)
		}
		if got, want := names(t, dir), []string{toolName, toolCompleter, "other"}; !slices.Equal(got, want) {
			t.Errorf("files %v, want %v", got, want)
		}
	}
	if content, _ := os.ReadFile(script); string(content) != "of Kube-OVN" {
		t.Errorf("the target of a link was changed to %q", content)
	}
	must.Succeed(t, os.WriteFile(filepath.Join(dir, ".kiln-kubectl-ko-17"), nil, 0o600))
	for range 2 {
		must.Succeed(t, tool.Remove())
		if got := names(t, dir); !slices.Equal(got, []string{"other"}) {
			t.Errorf("left after the removal: %v", got)
		}
	}
	must.Succeed(t, os.MkdirAll(filepath.Join(dir, toolName, "content"), 0o755))
	if err := tool.Remove(); err == nil {
		t.Error("a directory is no error")
	}
}

// TestRemovalFromAReadOnlyDirectory: a node whose directory was always read-only has nothing to remove.
func TestRemovalFromAReadOnlyDirectory(t *testing.T) {
	tool, dir := newTool(t, "new")
	must.Succeed(t, unix.Mount("none", dir, "tmpfs", unix.MS_RDONLY, ""))
	defer func() { must.Succeed(t, unix.Unmount(dir, 0)) }()
	if err := tool.Install(); !errors.Is(err, unix.EROFS) {
		t.Errorf("an installation: %v", err)
	}
	must.Succeed(t, tool.Remove())
}

// TestToolIsRetried starts without a directory. The failure is an event of the node, and does not end the process.
func TestToolIsRetried(t *testing.T) {
	tool, dir := newTool(t, "new")
	must.Succeed(t, os.Remove(dir))
	synctest.Test(t, func(t *testing.T) { // in the test's fake time
		recorder, served := events.NewFakeRecorder(100), make(chan struct{})
		tool.Recorder, tool.After = recorder, served
		ended := make(chan error, 1)
		go func() { ended <- tool.Start(t.Context()) }()
		time.Sleep(time.Hour)
		if len(recorder.Events) != 0 {
			t.Errorf("an attempt before the node's network serves: %s", <-recorder.Events)
		}
		close(served)
		synctest.Wait()
		if len(recorder.Events) != 1 {
			t.Fatalf("%d events after the first attempt", len(recorder.Events))
		}
		if got := <-recorder.Events; !strings.HasPrefix(got, "Warning ToolNotInstalled ") || !strings.Contains(got, "spec.agent.toolingDirectory") {
			t.Error(got)
		}
		time.Sleep(6 * time.Hour)
		if n := len(recorder.Events); n < 6 || n > 20 {
			t.Errorf("%d more attempts in six hours", n)
		}
		must.Succeed(t, os.Mkdir(dir, 0o755))
		time.Sleep(2 * time.Hour)
		if got, want := names(t, dir), []string{toolName, toolCompleter}; !slices.Equal(got, want) {
			t.Errorf("files %v, want %v", got, want)
		}
		if err := <-ended; err != nil {
			t.Errorf("ended with %v", err)
		}
	})

	tool.After = nil // the agent stops before the node's network serves
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	must.Succeed(t, tool.Start(ctx))
}
