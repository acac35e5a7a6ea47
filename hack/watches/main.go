// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Watches shows which event sources the tests need: it takes one call of Watches, WatchesRawSource, WatchesMetadata or Owns out of a controller at a
// time (go build -overlay: the files stay as they are) and runs the tests of that package. It prints which test failed, and exits non-zero when
// none did for some source.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kiln-net/kiln/internal/eventually"
)

// source is an event source of a controller.
type source struct {
	file string
	line int
	// Offsets in the file: of the expression that the method is called on, of its end, of the first argument, and of the end of the call.
	chain, chainEnd, arguments, end int
	text                            string
}

func main() {
	timeout := flag.Duration("timeout", 10*time.Minute, "how long the tests of a package may take; tests that hang have seen the source")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: watches [-timeout d] directory…")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	unseen, err := run(ctx, flag.Args(), *timeout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "watches:", err)
		os.Exit(2) //nolint:gocritic // the deferred stop has nothing left to do
	}
	if unseen > 0 {
		fmt.Fprintf(os.Stderr, "watches: %d sources that no test needs\n", unseen)
		os.Exit(1)
	}
}

func run(ctx context.Context, directories []string, timeout time.Duration) (unseen int, err error) {
	for _, directory := range directories {
		files, err := filepath.Glob(filepath.Join(directory, "*.go"))
		if err != nil {
			return 0, err
		}
		for _, file := range slices.DeleteFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") }) {
			content, err := os.ReadFile(file)
			if err != nil {
				return 0, err
			}
			list, err := sources(file, content)
			if err != nil {
				return 0, err
			}
			for _, s := range list {
				begun := time.Now()
				result, seen, err := without(ctx, s, content, timeout)
				if err != nil {
					return 0, err
				}
				if !seen {
					unseen++
				}
				fmt.Printf("%s:%d %s: %s (%s)\n", s.file, s.line, s.text, result, time.Since(begun).Round(time.Second))
			}
		}
	}
	return unseen, nil
}

// sources are the calls in a file that give a controller a source of events.
func sources(file string, content []byte) ([]source, error) {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, content, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	var list []source
	ast.Inspect(parsed, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		selector, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Watches", "WatchesRawSource", "WatchesMetadata", "Owns"}, selector.Sel.Name) {
			return true
		}
		s := source{
			file: file, line: set.Position(selector.Sel.Pos()).Line,
			chain: set.Position(selector.X.Pos()).Offset, chainEnd: set.Position(selector.X.End()).Offset,
			arguments: set.Position(call.Lparen).Offset + 1, end: set.Position(call.End()).Offset,
		}
		s.text = strings.Join(strings.Fields(string(content[set.Position(selector.Sel.Pos()).Offset:s.end])), " ")
		if len(s.text) > 100 {
			s.text = s.text[:100] + "…"
		}
		list = append(list, s)
		return true
	})
	slices.Reverse(list) // chains begin with their last call
	return list, nil
}

var failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// taken replaces the method: the chain goes on, and the arguments are used.
const taken = "\n\nfunc sourceTakenAway[B any](b B, _ ...any) B { return b }\n"

// without runs the tests of a package without a source. It returns what they said, and whether they saw it.
func without(ctx context.Context, s source, content []byte, timeout time.Duration) (result string, seen bool, err error) {
	dir, err := os.MkdirTemp("", "watches")
	if err != nil {
		return "", false, err
	}
	defer os.RemoveAll(dir)
	changed, overlay := filepath.Join(dir, filepath.Base(s.file)), filepath.Join(dir, "overlay.json")
	original, err := filepath.Abs(s.file)
	if err != nil {
		return "", false, err
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {original: changed}})
	if err != nil {
		return "", false, err
	}
	text := slices.Concat(content[:s.chain], []byte("sourceTakenAway("), content[s.chain:s.chainEnd], []byte(", "), content[s.arguments:s.end], content[s.end:], []byte(taken))
	for path, data := range map[string][]byte{changed: text, overlay: replace} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			return "", false, err
		}
	}
	// The go command is the only program that applies an overlay.
	test := exec.CommandContext(ctx, "go", "test", "-vet=off", "-count=1", "-failfast", "-timeout", timeout.String(), "-overlay", overlay, "./"+filepath.Dir(s.file))
	test.Env = append(os.Environ(), eventually.LimitVariable+"=20s")
	out, err := test.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return "", false, ctx.Err()
	case err == nil:
		return "NOT SEEN", false, nil
	}
	if tests := failedTest.FindAllSubmatch(out, -1); len(tests) > 0 {
		return "seen by " + string(tests[0][1]), true, nil
	}
	if strings.Contains(string(out), "panic: test timed out") {
		return "seen: the tests hang", true, nil
	}
	return "", false, fmt.Errorf("%s:%d: %w\n%s", s.file, s.line, err, out)
}
