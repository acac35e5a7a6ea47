// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package prepared

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// imagePrograms are the programs, by their paths in the image's root file system, that tests and the product call by name.
var imagePrograms = []string{"usr/sbin/nft", "usr/sbin/ip", "usr/sbin/conntrack", "usr/bin/ping"}

// UseImagePrograms puts nft, ip, conntrack and ping of the image's root file system first in PATH, for this process and its children, so
// that tests run the versions that ship and need none on the host. The directory dir holds the wrapper scripts.
func UseImagePrograms(dir string) error {
	for _, path := range imagePrograms {
		command, err := Program(path)
		if err != nil {
			return err
		}
		script := "#!/bin/sh\nexec '" + strings.Join(command, "' '") + "' \"$@\"\n"
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), []byte(script), 0o755); err != nil {
			return fmt.Errorf("write a wrapper of %s: %w", path, err)
		}
	}
	if err := os.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH")); err != nil {
		return fmt.Errorf("set PATH: %w", err)
	}
	return nil
}
