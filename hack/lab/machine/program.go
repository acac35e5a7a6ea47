// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// KeepProgram copies this program to the path where machines and tests find it: `go run` removes the original when it exits. It replaces an existing copy by rename, because a
// running program cannot be written to.
func KeepProgram(path string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("open this program: %w", err)
	}
	defer self.Close()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make the program's directory: %w", err)
	}
	tmp, err := os.OpenFile(path+".tmp", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return fmt.Errorf("copy this program: %w", err)
	}
	_, err = io.Copy(tmp, self)
	if err := errors.Join(err, tmp.Close()); err != nil {
		return fmt.Errorf("copy this program: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("copy this program: %w", err)
	}
	return nil
}
