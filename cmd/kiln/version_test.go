// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"runtime"
	"strings"
	"testing"
)

func TestVersionPrintsTagAndPlatform(t *testing.T) {
	var out bytes.Buffer
	cmd := newVersionCommand()
	cmd.SetOut(&out)
	cmd.SetArgs([]string{})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.HasPrefix(got, "kiln dev "+runtime.GOOS+"/"+runtime.GOARCH+" go") {
		t.Error(got)
	}
}
