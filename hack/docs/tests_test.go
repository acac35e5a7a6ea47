// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTestsThatPagesNameExist checks that every Go test named in a page of docs/, in CONTRIBUTING.md or in AGENTS.md exists.
func TestTestsThatPagesNameExist(t *testing.T) {
	name := regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]+)`")
	declared := map[string]bool{}
	walk := func(dir, suffix string, f func(text string)) {
		t.Helper()
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() && entry.Name() == "_output" {
				return filepath.SkipDir
			}
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, suffix) {
				return err
			}
			text, err := os.ReadFile(path)
			f(string(text))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	function := regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(`)
	walk(".", "_test.go", func(text string) {
		for _, found := range function.FindAllStringSubmatch(text, -1) {
			declared[found[1]] = true
		}
	})
	named := 0
	for page, text := range pages(t) {
		if !strings.HasPrefix(page, "docs/") && page != "CONTRIBUTING.md" && page != "AGENTS.md" {
			continue
		}
		for _, found := range name.FindAllStringSubmatch(text, -1) {
			if named++; !declared[found[1]] {
				t.Errorf("%s names %s, which does not exist", page, found[1])
			}
		}
	}
	if named < 50 {
		t.Errorf("the pages name %d tests: this proves little", named)
	}
}
