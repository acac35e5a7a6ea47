// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlko

import (
	"fmt"
	"os"
	"testing"

	"github.com/kiln-net/kiln/internal/testing/golden"
)

func TestMain(m *testing.M) {
	code := golden.Check(m.Run())
	if shared != nil {
		if err := shared.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the API server:", err)
			code = 1
		}
	}
	os.Exit(code)
}
