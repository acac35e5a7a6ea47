// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Language checks that the share of archaic or riddling English in comments, string literals, names of tests and pages of documentation stays low. A marker is a
// symptom: name the subject and use the field's word, instead of a synonym of the marker (CONTRIBUTING.md).
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// markers are words and phrases that plain technical English does without in most places.
var markers = regexp.MustCompile(strings.Join([]string{
	`(?i)\bwhat (?:is|are|was|were|it|they|has|have|others|users|pods|comes|came|goes|must|may|can|cannot|does|follows|belongs|runs|serves|asks)\b`,
	`(?i)\b(?:those|that) (?:of|which|who|with|without)\b`,
	`\b(?:tells?|told|hears? of|heard of)\b`,
	`(?i)\b(?:nobody|somebody|anybody|whoever|whomever|whom)\b`,
	`\b(?:anew|rivals?|beside|mend(?:s|ed|ing)?|in force)\b`,
	`\b(?:is|are|was|were) gone\b`,
	`\bany more\b|\bof before\b|\bfrom before\b|\bfor (?:its|their) own\b`,
	`\b(?:comes?|goes?|went) (?:by|away|on)\b`,
	`\b(?:is|are) to (?:be|have|go|come)\b`,
}, "|"))

// riddles are phrases that make a name of a test hard to understand. The name is the first line that somebody reads of a failure.
var riddles = regexp.MustCompile(`(?i)\b(?:ways? out|for ever|no more|comes? .*goes?)\b`)

// fewWords is the number of words below which a text is not judged.
const fewWords = 4

// share counts the texts of one kind.
type share struct {
	kind string
	// names: the texts are names, of which riddles counts, too.
	names bool
	// limit is the highest share of texts with a marker, in parts of a thousand.
	limit         int
	texts, marked int
	found         []string
}

func (s *share) add(at, text string) {
	if len(strings.Fields(text)) < fewWords {
		return
	}
	s.texts++
	m := markers.FindString(text)
	if m == "" && s.names {
		m = riddles.FindString(text)
	}
	if m != "" {
		s.marked++
		s.found = append(s.found, fmt.Sprintf("%s: %q in: %.120s", at, m, strings.Join(strings.Fields(text), " ")))
	}
}

func (s *share) exceeded() bool { return s.marked*1000 > s.texts*s.limit }

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "language:", err)
		os.Exit(1)
	}
}

func run(root string) error {
	code := judged{
		comments: &share{kind: "comments", limit: 10}, literals: &share{kind: "string literals", limit: 2}, tests: &share{kind: "names of tests", names: true, limit: 5},
	}
	pages := &share{kind: "sentences of docs", limit: 20}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == "_output" || name == ".git" || name == "bin"):
			return filepath.SkipDir
		case filepath.Ext(name) != ".md" && filepath.Ext(name) != ".go":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if filepath.Ext(name) == ".md" {
			judgePage(pages, name, string(text))
			return nil
		}
		return code.judge(name, text)
	})
	if err != nil {
		return fmt.Errorf("read the texts: %w", err)
	}
	exceeded := false
	for _, s := range []*share{code.comments, code.literals, code.tests, pages} {
		fmt.Printf("%d of %d %s have a marker (%.1f %%, limit %.1f %%)\n", s.marked, s.texts, s.kind, 100*float64(s.marked)/float64(max(s.texts, 1)), float64(s.limit)/10)
		if s.exceeded() {
			exceeded = true
			fmt.Println("  " + strings.Join(s.found, "\n  "))
		}
	}
	if exceeded {
		return errors.New("rewrite some of the texts above (CONTRIBUTING.md, Language)")
	}
	return nil
}

// judged are the texts of source files.
type judged struct{ comments, literals, tests *share }

// judge judges the comments, the string literals and the names of tests of a file that people write.
func (j judged) judge(name string, text []byte) error {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ParseComments)
	if err != nil {
		return fmt.Errorf("parse %s: %w", name, err)
	}
	if ast.IsGenerated(file) || strings.HasPrefix(name, "internal/ovsdb/nb/") || strings.HasPrefix(name, "internal/ovsdb/vswitch/") {
		return nil
	}
	at := func(p token.Pos) string { return files.Position(p).String() }
	for _, group := range file.Comments {
		j.comments.add(at(group.Pos()), group.Text())
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				j.literals.add(at(n.Pos()), strings.Trim(n.Value, "\"`"))
			}
		case *ast.FuncDecl:
			if n.Recv == nil && testName.MatchString(n.Name.Name) {
				j.tests.add(at(n.Pos()), words(n.Name.Name))
			}
		}
		return true
	})
	return nil
}

var (
	testName = regexp.MustCompile(`^(?:Test|Benchmark|Fuzz)[A-Z]`)
	acronym  = regexp.MustCompile(`([A-Z]+)([A-Z][a-z])`)
	camel    = regexp.MustCompile(`([a-z0-9])([A-Z])`)
)

// words returns the words of an identifier in lower case.
func words(name string) string {
	return strings.ToLower(camel.ReplaceAllString(acronym.ReplaceAllString(name, "$1 $2"), "$1 $2"))
}

var (
	fence    = regexp.MustCompile("(?s)```.*?```")
	code     = regexp.MustCompile("`[^`\n]*`")
	tableRow = regexp.MustCompile(`(?m)^\|[^\n]*$`)
	sentence = regexp.MustCompile(`[.!?:]\s+|\n\s*\n|\n\s*(?:[-*]|\d+\.)\s`)
)

// judgePage judges the sentences of a page, without code and tables.
func judgePage(pages *share, name, text string) {
	text = tableRow.ReplaceAllString(code.ReplaceAllString(fence.ReplaceAllString(text, " "), "x"), "")
	for _, s := range sentence.Split(text, -1) {
		pages.add(name, s)
	}
}
