// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// source is an event source of a controller.
type source struct {
	id   string // file:line
	text string
}

// variable is the environment variable that names the source to leave out.
const variable = "KILN_WITHOUT_SOURCE"

// switches is the file that the overlay adds to a package: the type that sources are added to, and the function that adds them.
const switches = `package %s

import (
	"os"

	"sigs.k8s.io/controller-runtime/pkg/builder"
)

type builderOfSources = builder.Builder

func sourceUnlessLeftOut(id string, b *builderOfSources, add func(*builderOfSources) *builderOfSources) *builderOfSources {
	if os.Getenv(%q) == id {
		return b
	}
	return add(b)
}
`

// insertion is text to insert at an offset of a file. Insertions at the same offset are ordered by rank, lowest first.
type insertion struct {
	offset, rank int
	text         string
}

// switchable writes a copy of the directory's files that add event sources to dir, with a switch around each source. It returns the
// sources and the path of the overlay.
func switchable(directory, dir string) (list []source, overlay string, err error) {
	files, err := filepath.Glob(filepath.Join(directory, "*.go"))
	if err != nil {
		return nil, "", err
	}
	replace := map[string]string{}
	add := func(path string, content []byte) error {
		original, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		replace[original] = filepath.Join(dir, filepath.Base(path))
		return os.WriteFile(replace[original], content, 0o600)
	}
	for _, file := range slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") }) {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, "", err
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, content, parser.SkipObjectResolution)
		if err != nil {
			return nil, "", err
		}
		found, insertions := sources(set, parsed, content)
		if len(found) == 0 {
			continue
		}
		list = append(list, found...)
		switchFile := filepath.Join(directory, "sources_of_watches.go")
		if err := add(switchFile, fmt.Appendf(nil, switches, parsed.Name.Name, variable)); err != nil {
			return nil, "", err
		}
		if err := add(file, inserted(content, insertions)); err != nil {
			return nil, "", err
		}
	}
	encoded, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return nil, "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return list, overlay, os.WriteFile(overlay, encoded, 0o600)
}

// sources returns the calls in a file that add an event source to a controller, and the insertions that put a switch around each
// call.
func sources(set *token.FileSet, parsed *ast.File, content []byte) (list []source, insertions []insertion) {
	ast.Inspect(parsed, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		selector, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Watches", "WatchesRawSource", "WatchesMetadata", "Owns"}, selector.Sel.Name) {
			return true
		}
		name, end := set.Position(selector.Sel.Pos()), set.Position(call.End()).Offset
		id := fmt.Sprintf("%s:%d", name.Filename, name.Line)
		list = append(list, source{id: id, text: shorten(strings.Join(strings.Fields(string(content[name.Offset:end])), " "), 100)})
		// ast.Inspect visits a chain of calls from its last call on, and all calls of a chain begin at one offset. There, the last
		// call must come first.
		insertions = append(insertions,
			insertion{set.Position(selector.X.Pos()).Offset, len(list), fmt.Sprintf("sourceUnlessLeftOut(%q, ", id)},
			insertion{set.Position(selector.X.End()).Offset, 1, ", func(b *builderOfSources) *builderOfSources { return b"},
			insertion{end, 0, " })"})
		return true
	})
	slices.Reverse(list)
	return list, insertions
}

func inserted(content []byte, insertions []insertion) []byte {
	slices.SortFunc(insertions, func(a, b insertion) int { return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.rank, b.rank)) })
	var out []byte
	done := 0
	for _, i := range insertions {
		out = append(append(out, content[done:i.offset]...), i.text...)
		done = i.offset
	}
	return append(out, content[done:]...)
}
