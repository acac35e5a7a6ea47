// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package ovsdb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
)

// unfinishedMove is the suffix of a file in the new directory that is not complete yet.
const unfinishedMove = ".moving"

// moveData moves the files of a database, with its backups and the files set aside, from one directory to another, which may be on another
// file system. No server may run on either. The database file in the old directory is deleted last: while it exists, it is the current one,
// whatever the new directory has. So the move can be interrupted after any step, and repeated. Without a database file in the old directory
// moveData does nothing.
func moveData(ctx context.Context, db Database, from, to string, log logr.Logger) error {
	current := db.Stem + ".db"
	if _, err := os.Stat(filepath.Join(from, current)); errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("look for the database file in the previous data directory: %w", err)
	}
	if same, err := sameDirectory(from, to); same || err != nil {
		return err
	}
	names, err := dataFiles(db, from)
	if err != nil {
		return err
	}
	log.Info("moving the database to another directory", "files", names)
	if err := setOtherAside(filepath.Join(to, current)); err != nil {
		return err
	}
	for _, name := range names {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := copyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return fmt.Errorf("copy %s to the new data directory: %w", name, err)
		}
	}
	for _, name := range names {
		if err := os.Remove(filepath.Join(from, name)); err != nil {
			return fmt.Errorf("delete a moved file: %w", err)
		}
	}
	_ = os.Remove(filepath.Join(from, "backups")) // fails while the directory has other files in it
	return syncDir(from)
}

// sameDirectory reports whether both paths are one directory.
func sameDirectory(from, to string) (bool, error) {
	if err := os.MkdirAll(to, 0o750); err != nil {
		return false, fmt.Errorf("make the data directory: %w", err)
	}
	a, fromErr := os.Stat(from)
	b, toErr := os.Stat(to)
	if err := errors.Join(fromErr, toErr); err != nil {
		return false, fmt.Errorf("compare the data directories: %w", err)
	}
	return os.SameFile(a, b), nil
}

// dataFiles returns the files of a database in a directory, the current database file last. Locks and unfinished files are not among them.
func dataFiles(db Database, dir string) ([]string, error) {
	var names []string
	for _, pattern := range []string{filepath.Join("backups", db.Stem+"-*"), db.Stem + ".db?*"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, fmt.Errorf("list the files of the database: %w", err)
		}
		for _, path := range found {
			name, err := filepath.Rel(dir, path)
			if err != nil {
				return nil, fmt.Errorf("list the files of the database: %w", err)
			}
			if !slices.ContainsFunc([]string{".new", ".probe", ".standalone", unfinishedMove}, func(s string) bool { return strings.HasSuffix(name, s) }) {
				names = append(names, name)
			}
		}
	}
	return append(names, db.Stem+".db"), nil
}

// setOtherAside renames a database file that the directory has from an earlier time.
func setOtherAside(path string) error {
	err := os.Rename(path, path+".aside-"+time.Now().UTC().Format("20060102T150405.000"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("set the database file of the new data directory aside: %w", err)
	}
	return nil
}

// copyFile copies a file with its time. The copy gets its name when it is on the disk.
func copyFile(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o750); err != nil {
		return err
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return err
	}
	fresh := to + unfinishedMove
	file, err := os.OpenFile(fresh, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(file, source)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := errors.Join(os.Chtimes(fresh, time.Time{}, info.ModTime()), os.Rename(fresh, to)); err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}
