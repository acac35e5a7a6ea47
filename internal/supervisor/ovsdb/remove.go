// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// RemoveData deletes the files of both databases from their directory: those in use, those that were set aside, and backups. Files of
// others stay. No member may run meanwhile.
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
	// Refused while there are files of others in it.
	_ = os.Remove(filepath.Join(directory, "backups"))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("delete the databases' files: %w", err)
	}
	return nil
}
