// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kiln-net/kiln/internal/testing/must"
)

// envMain makes the test's program run main, under the name by which it was started.
const envMain = "KILN_TEST_MAIN"

// TestTheNameSelectsThePlugin starts one program under several names, which are links as in the image and on nodes.
func TestTheNameSelectsThePlugin(t *testing.T) {
	program, err := os.Executable()
	must.Succeed(t, err)
	dir := t.TempDir()
	for _, tt := range []struct {
		name, args   string
		starts, says string
		fails        bool
	}{
		{name: "kubectl-ko", args: "version --client", starts: "kubectl-ko dev\n"},
		{name: "kubectl-ko", args: "no-such-command", starts: "error: ", says: "no-such-command", fails: true},
		{name: "kubectl_complete-ko", args: "versio", starts: "version\t", says: "\n:4\n"},
		{name: "kiln", args: "version", starts: "kiln dev "},
		{name: "kiln", args: "status", starts: "Error: unknown command", fails: true},
	} {
		t.Run(tt.name+" "+tt.args, func(t *testing.T) {
			link := filepath.Join(dir, tt.name)
			if _, err := os.Lstat(link); err != nil {
				must.Succeed(t, os.Symlink(program, link))
			}
			cmd := exec.Command(link, strings.Fields(tt.args)...)
			cmd.Env = append(os.Environ(), envMain+"=1", "KUBECONFIG=/does/not/exist")
			out, err := cmd.CombinedOutput()
			if got := string(out); (err != nil) != tt.fails || !strings.HasPrefix(got, tt.starts) || !strings.Contains(got, tt.says) {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
