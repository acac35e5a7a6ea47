// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"strings"
	"testing"
)

// TestUnknownCommandsFail: scripts for Kube-OVN's plugin must not take help for the answer of a command.
func TestUnknownCommandsFail(t *testing.T) {
	t.Setenv("KUBECONFIG", "/does/not/exist")
	for args, want := range map[string]string{
		"trace default/web 10.0.0.1 icmp": `this version has no command "trace" of Kube-OVN's plugin`,
		"log everything":                  `invalid argument "everything"`,
		"statuss":                         `unknown command "statuss"`,
		"-n kiln nbctk show":              `unknown command "nbctk" (is it nbctl or sbctl?)`,
		"nb nosuch":                       `unknown command "nosuch"`,
	} {
		out, err := run(strings.Fields(args)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", args, err, want)
		}
		if strings.Contains(out, "Available Commands") {
			t.Errorf("%q printed help", args)
		}
	}
	for _, args := range []string{"", "--help", "help", "nb", "nb --help", "completion --help"} {
		if out, err := run(strings.Fields(args)...); err != nil || !strings.Contains(out, "Usage:") {
			t.Errorf("%q: error %v, output %q; want help, which needs no API server", args, err, out)
		}
	}
}

// TestMissingCommandsAreMissing fails when a command exists that is still listed as missing.
func TestMissingCommandsAreMissing(t *testing.T) {
	for _, name := range missing {
		if found, rest, err := NewCommand(nil, nil, nil).Find([]string{name}); err == nil && len(rest) == 0 && found.HasParent() {
			t.Errorf("%s exists: remove it from missing", name)
		}
	}
}

func run(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := NewCommand(strings.NewReader(""), &out, &out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}
