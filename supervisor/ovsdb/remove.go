// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// RemoveData deletes the files of both databases from their directory: current files, files set aside, and backups. Other files
// stay. No member may run at the same time.
func RemoveData(directory string) error {
	var errs []error
	for _, db := range []Database{Northbound, Southbound} {
		for _, pattern := range []string{db.Stem + ".db*", "." + db.Stem + ".db*", filepath.Join("backups", db.Stem+"-*")} {
			found, err := filepath.Glob(filepath.Join(directory, pattern))
			errs = append(errs, err)
			for _, path := range found {
				errs = append(errs, os.Remove(path))
			}
		}
	}
	// This fails while the directory has other files in it.
	_ = os.Remove(filepath.Join(directory, "backups"))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("delete the databases' files: %w", err)
	}
	return nil
}
