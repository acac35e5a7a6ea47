// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package mistakes

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Each row of the page has a message that a test of another package compares with what users get.
func TestRowsAreTested(t *testing.T) {
	rows := Mistakes.Read(t)
	if len(rows) < 20 {
		t.Fatalf("%d rows", len(rows))
	}
	call := regexp.MustCompile(`mistakes\.Sees\(\w+, (\d+),|\{row: (\d+),`)
	var tested []int
	err := filepath.WalkDir(root(t), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, found := range call.FindAllStringSubmatch(string(text), -1) {
			number, _ := strconv.Atoi(found[1] + found[2])
			tested = append(tested, number)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range rows {
		if row.Number != i+1 || len(row.Seen) == 0 || !slices.Contains(tested, row.Number) {
			t.Errorf("row %d has the number %d and %d messages; it is tested: %t", i+1, row.Number, len(row.Seen), slices.Contains(tested, row.Number))
		}
	}
}
