// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestUnknownCommandsFail: scripts for Kube-OVN's plugin must not take help for the answer of a command.
func TestUnknownCommandsFail(t *testing.T) {
	t.Setenv("KUBECONFIG", "/does/not/exist")
	for args, want := range map[string]string{
		"icnbctl show":                 `this version has no command "icnbctl" of Kube-OVN's plugin: Kiln runs no OVN-IC`,
		"icnbctl --format=csv ts-list": `this version has no command "icnbctl" of Kube-OVN's plugin`,
		"-n kiln icsbctl --help":       `this version has no command "icsbctl" of Kube-OVN's plugin`,
		"log everything":               `invalid argument "everything"`,
		"statuss":                      `unknown command "statuss"`,
		"-n kiln nbctk show":           `unknown command "nbctk" (is it nbctl or sbctl?)`,
		"nb nosuch":                    `unknown command "nosuch"`,
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

// TestMissingCommandsAreMissing fails when a command exists that is still listed as missing, or when help lists a missing one.
func TestMissingCommandsAreMissing(t *testing.T) {
	for _, m := range missing {
		var found []*cobra.Command
		for _, c := range NewCommand(nil, nil, nil).Commands() {
			if c.Name() == m.name {
				found = append(found, c)
			}
		}
		if len(found) != 1 || !found[0].Hidden {
			t.Errorf("%s exists: remove it from missing", m.name)
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
