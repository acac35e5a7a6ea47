// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// pages returns the text of each page of documentation, by its path from the root of the repository.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == "_output" || entry.Name() == ".git") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(root, path)
		found[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var (
	codeBlock = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	link      = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// anchors returns the anchors of a page's headings, as GitHub makes them.
func anchors(page string) map[string]bool {
	found := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(page, ""), -1) {
		found[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(match[1]))] = true
	}
	return found
}

// TestLinks checks that every relative link leads to a file, and to a heading if it names one.
func TestLinks(t *testing.T) {
	all, links := pages(t), 0
	for name, text := range all {
		for _, match := range link.FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
			if strings.Contains(match[1], "://") || strings.HasPrefix(match[1], "mailto:") {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(match[1], "#")
			target := name
			if file != "" {
				target = filepath.Join(filepath.Dir(name), file)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s links to %s, which does not exist", name, match[1])
				continue
			}
			if anchor != "" && filepath.Ext(target) == ".md" && !anchors(all[target])[anchor] {
				t.Errorf("%s links to %s, and %s has no such heading", name, match[1], target)
			}
		}
	}
	if links < 100 {
		t.Errorf("the pages have %d links: this proves little", links)
	}
}

// TestPathsExist checks that the files and directories that CONTRIBUTING.md and AGENTS.md name from the root of the repository exist.
func TestPathsExist(t *testing.T) {
	all, paths := pages(t), 0
	for _, name := range []string{"CONTRIBUTING.md", "AGENTS.md"} {
		for _, match := range regexp.MustCompile("`((?:agent|api|cmd|config|controllers|docs|hack|internal|test)/[a-z0-9_./-]+)`").FindAllStringSubmatch(all[name], -1) {
			paths++
			if _, err := os.Stat(filepath.Join(root, match[1])); err != nil {
				t.Errorf("%s names %s, which does not exist", name, match[1])
			}
		}
	}
	if paths < 30 {
		t.Errorf("the pages name %d paths: this proves little", paths)
	}
}

// TestDecisionsAreIndexed checks that docs/decisions/README.md has each decision, under its title.
func TestDecisionsAreIndexed(t *testing.T) {
	all := pages(t)
	index := all["docs/decisions/README.md"]
	for name, text := range all {
		dir, file := filepath.Split(name)
		if dir != "docs/decisions/" || file == "README.md" {
			continue
		}
		title, _, _ := strings.Cut(strings.TrimPrefix(text, "# "), "\n")
		date := file[:len("2006-01-02")]
		title = strings.TrimSuffix(strings.TrimPrefix(title, date+" "), " ("+date+")")
		if line := "- [" + title + "](" + file + "), " + date + "\n"; !strings.Contains(index, line) {
			t.Errorf("docs/decisions/README.md lacks: %s", line)
		}
	}
}

// TestRolesOfUsersHaveEveryResource compares the ClusterRoles kiln-view and kiln-edit with the resource definitions.
func TestRolesOfUsersHaveEveryResource(t *testing.T) {
	definitions, err := filepath.Glob(filepath.Join(root, "config/crd/bases/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, path := range definitions {
		all = append(all, strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "kubeovn.io_"), ".yaml"))
	}
	text, err := os.ReadFile(filepath.Join(root, "config/rbac/user_roles.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]bool{"kiln-view": false, "kiln-edit": true} {
		var role rbacv1.ClusterRole
		for document := range strings.SplitSeq(string(text), "---\n") {
			var r rbacv1.ClusterRole
			if err := yaml.UnmarshalStrict([]byte(document), &r); err != nil {
				t.Fatal(err)
			}
			if r.Name == name {
				role = r
			}
		}
		for _, resource := range all {
			may := func(verb string) bool {
				return slices.ContainsFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
					return slices.Contains(r.Resources, resource) && slices.Contains(r.Verbs, verb)
				})
			}
			if !may("list") || may("patch") != (change && resource != "ovnclusters") {
				t.Errorf("ClusterRole %s: may list %s: %v, may patch: %v", name, resource, may("list"), may("patch"))
			}
		}
	}
}

func read(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
