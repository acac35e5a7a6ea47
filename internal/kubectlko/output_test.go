// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kiln-net/kiln/internal/testing/must"
)

func TestOutputFormats(t *testing.T) {
	file := filepath.Join(t.TempDir(), "template")
	must.Succeed(t, os.WriteFile(file, []byte("{{.name}} of a file"), 0o600))
	for _, tt := range []struct{ args, want, problem string }{
		{args: "", want: "for people"},
		{args: "-o text", want: "for people"},
		{args: "-o own", want: "for people"},
		{args: "-o json", want: "{\n    \"name\": \"a\\u001bb\",\n    \"rows\": [\n        1,\n        2\n    ]\n}\n"},
		{args: "-o yaml", want: "name: \"a\\eb\"\nrows:\n- 1\n- 2\n"},
		{args: "-o jsonpath={.rows[1]}", want: "2"},
		{args: "-o jsonpath={.name}", want: "a?b"},
		{args: "-o go-template={{.name}}", want: "a?b"},
		{args: "-o go-template-file=" + file, want: "a?b of a file"},
		{args: "-o jsonpath={.missing}", want: ""},
		{args: "-o wide", problem: `--output "wide": use one of text, own, json, yaml`},
		{args: "-o jsonpath={", problem: "unclosed action"},
		{args: "-o go-template", problem: `--output "go-template": use one of`},
		{args: "-o json=x", problem: `--output "json=x": use one of`},
		{args: "-o go-template={{", problem: "--output: "},
		{args: "-o jsonpath-file=/does/not/exist", problem: "read the template: open /does/not/exist"},
	} {
		var o output
		var out strings.Builder
		cmd := &cobra.Command{RunE: func(*cobra.Command, []string) error {
			printer, err := o.printer()
			if err != nil {
				return err
			}
			value := struct {
				Name string `json:"name"`
				Rows []int  `json:"rows"`
			}{"a\x1bb", []int{1, 2}}
			return writeAs(&out, printer, value, func(w io.Writer) error {
				_, err := io.WriteString(w, "for people")
				return err
			})
		}}
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		o.add(cmd, formatText, "own")
		cmd.SetArgs(strings.Fields(tt.args))
		err := cmd.Execute()
		switch {
		case tt.problem != "":
			if err == nil || !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("%q: error %v, want %q", tt.args, err, tt.problem)
			}
		case err != nil || out.String() != tt.want:
			t.Errorf("%q: error %v, output %q, want %q", tt.args, err, out.String(), tt.want)
		}
	}
}

func TestFlagsOfAllCommandsAreListedOnce(t *testing.T) {
	global, err := run("options")
	must.Succeed(t, err)
	help, err := run("trace", "--help")
	must.Succeed(t, err)
	for _, flag := range []string{"--kubeconfig", "--context", "--as ", "--namespace", "--stdin", "--request-timeout"} {
		if !strings.Contains(global, flag) || strings.Contains(help, flag) {
			t.Errorf("%s is in the help of a command, or not in options: %s", flag, global)
		}
	}
	if !strings.Contains(help, "--established") || !strings.Contains(help, "kubectl ko options") {
		t.Errorf("the help of trace is %s", help)
	}
}
