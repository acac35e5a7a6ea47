// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovs

import (
	"fmt"
	"os"
	"testing"

	"github.com/kiln-net/kiln/internal/testing/eventually"
	"github.com/kiln-net/kiln/internal/testing/prepared"
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (int, error) {
	// The fake API server sends no initial events in watches: informers have to list first.
	if err := os.Setenv("KUBE_FEATURE_WatchListClient", "false"); err != nil {
		return 1, err
	}
	programs, err := os.MkdirTemp("", "kiln-programs")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(programs)
	if err := prepared.UseImagePrograms(programs); err != nil {
		return 1, err
	}
	return eventually.Main(m), nil
}
