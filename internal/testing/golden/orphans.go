// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// wasRead holds the paths of all files that tests of this process read through this package.
var wasRead sync.Map

func read(path string) { wasRead.Store(filepath.Clean(path), true) }

// Main is a TestMain: it runs the tests and then Check.
func Main(m *testing.M) { os.Exit(Check(m.Run())) }

// Check returns the exit status of a package, given the status of its tests: 1 if all passed but testdata has files that no test
// read. It checks nothing if only some of the tests ran.
func Check(status int) int {
	if status != 0 || someOnly() {
		return status
	}
	orphans, err := orphans("testdata")
	if err != nil {
		fmt.Fprintln(os.Stderr, "look for golden files that no test reads:", err)
		return 1
	}
	if len(orphans) > 0 {
		fmt.Fprintf(os.Stderr, "no test reads these golden files: delete them\n\t%s\n", strings.Join(orphans, "\n\t"))
		return 1
	}
	return 0
}

// someOnly reports whether a flag selects tests.
func someOnly() bool {
	for _, name := range []string{"run", "skip", "list", "bench", "fuzz"} {
		if f := flag.Lookup("test." + name); f != nil && f.Value.String() != "" {
			return true
		}
	}
	return false
}

// orphans returns the files of a directory that were not read. It skips the corpora of fuzz targets, which Go reads.
func orphans(directory string) (found []string, err error) {
	err = filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err) && path == directory:
			return fs.SkipAll
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "fuzz":
			return fs.SkipDir
		}
		if _, known := wasRead.Load(filepath.Clean(path)); !known && !entry.IsDir() {
			found = append(found, path)
		}
		return nil
	})
	return found, err
}
