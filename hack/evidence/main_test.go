// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// repository is a git repository with files of the product, of tests and of docs.
func repository(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range append(slices.Clone(product), "test/e2e", "hack", "docs", "Makefile") {
		if !strings.Contains(name, "go.") && name != "Makefile" {
			name += "/file.go"
		}
		write(t, root, name, "one")
	}
	inGit(t, root, "init", "--quiet")
	commit(t, root)
	return root
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func commit(t *testing.T, root string) {
	t.Helper()
	inGit(t, root, "add", "--all")
	inGit(t, root, "-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "commit.gpgsign=false", "commit", "--quiet", "--message=change")
}

func inGit(t *testing.T, root string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", root}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, out)
	}
}

// prints is a target that prints and exits.
func prints(output string, exit error) func(context.Context, string, string, io.Writer) error {
	return func(_ context.Context, _, _ string, w io.Writer) error {
		fmt.Fprint(w, output)
		return exit
	}
}

const (
	twoPackages = "ok  \tgithub.com/kiln-net/kiln/api\t1.2s\nok  \tgithub.com/kiln-net/kiln/cni\t(cached)\n"
	oneFailed   = "ok  \tgithub.com/kiln-net/kiln/api\t1.2s\nFAIL\tgithub.com/kiln-net/kiln/cni\t0.1s\n"
)

func record(t *testing.T, root string, environment map[string]string, output string, exit error) error {
	t.Helper()
	r := &recorder{root: root, getenv: func(name string) string { return environment[name] }, run: prints(output, exit)}
	return r.record(t.Context(), "fuzz")
}

func TestARecordIsValidForTheProductThatItTested(t *testing.T) {
	root := repository(t)
	valid := func(want string) {
		t.Helper()
		var out strings.Builder
		err := check(t.Context(), &out, root, []string{"fuzz"})
		if (err == nil) != (want == "valid") || !strings.Contains(out.String(), "| fuzz | "+want+" |") {
			t.Errorf("evidence (%v):\n%swant %q", err, &out, want)
		}
	}
	valid("no record")
	if err := record(t, root, nil, twoPackages, nil); err != nil {
		t.Fatal(err)
	}
	valid("valid")
	commit(t, root) // of the record
	valid("valid")
	write(t, root, "docs/file.go", "two")
	write(t, root, "test/e2e/file.go", "two")
	commit(t, root)
	valid("valid")
	for _, name := range []string{"agent/file.go", "config/new.yaml", "go.sum"} {
		write(t, root, name, "two")
		commit(t, root)
		valid("of another product: run it again")
		if err := record(t, root, nil, twoPackages, nil); err != nil {
			t.Fatal(err)
		}
		valid("valid")
	}
	if err := record(t, root, nil, oneFailed, errors.New("exit status 1")); err == nil || !strings.Contains(err.Error(), "fuzz failed") {
		t.Errorf("a failed suite: error %v", err)
	}
	valid("failed")
	if err := check(t.Context(), io.Discard, root, required()); err == nil || !strings.Contains(err.Error(), "test-e2e") {
		t.Errorf("evidence of a release: error %v", err)
	}
}

func TestChangesThatAreNotCommittedHaveNoRecord(t *testing.T) {
	for _, name := range []string{"agent/file.go", "api/new.go", "go.mod", "test/e2e/new_test.go", "Makefile"} {
		root := repository(t)
		write(t, root, name, "two")
		err := record(t, root, nil, twoPackages, nil)
		if !errors.Is(err, errChanged) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	root := repository(t)
	write(t, root, "docs/new.md", "two")
	if err := record(t, root, nil, twoPackages, nil); err != nil {
		t.Errorf("a new page: %v", err)
	}
}

func TestAProductThatChangesMeanwhileHasNoRecord(t *testing.T) {
	for name, change := range map[string]func(root string){
		"not committed": func(root string) { write(t, root, "cmd/file.go", "two") },
		"committed":     func(root string) { write(t, root, "cmd/file.go", "two"); commit(t, root) },
	} {
		root := repository(t)
		r := &recorder{root: root, getenv: func(string) string { return "" }, run: func(_ context.Context, _, _ string, w io.Writer) error {
			change(root)
			fmt.Fprint(w, twoPackages)
			return nil
		}}
		if err := r.record(t.Context(), "fuzz"); err == nil {
			t.Errorf("%s: no error", name)
		}
		if records, err := readRecords(root); err != nil || len(records) != 0 {
			t.Errorf("%s: records %v, %v", name, records, err)
		}
	}
}

func TestARunWithoutTestsHasNoRecord(t *testing.T) {
	root := repository(t)
	err := record(t, root, nil, "the lab did not start\n", errors.New("exit status 2"))
	if records, _ := readRecords(root); len(records) > 0 || err == nil || !strings.Contains(err.Error(), "exit status 2") {
		t.Errorf("a suite that did not start: records %v, %v", records, err)
	}
	if err := record(t, root, nil, "nothing to do\n", nil); err == nil || !strings.Contains(err.Error(), "no result of a test") {
		t.Errorf("error %v", err)
	}
}

func TestAnInterruptedRunHasNoRecord(t *testing.T) {
	root := repository(t)
	ctx, cancel := context.WithCancel(t.Context())
	r := &recorder{root: root, getenv: func(string) string { return "" }, run: func(context.Context, string, string, io.Writer) error {
		cancel()
		return errors.New("signal: interrupt")
	}}
	if err := r.record(ctx, "fuzz"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if records, err := readRecords(root); err != nil || len(records) != 0 {
		t.Errorf("records %v, %v", records, err)
	}
}

func TestARunWithSettingsDoesNotReplaceTheRecordOfTheWholeSuite(t *testing.T) {
	root := repository(t)
	for _, environment := range []map[string]string{nil, {"FUZZTIME": "10m"}, {"FUZZTIME": "1m"}} {
		if err := record(t, root, environment, twoPackages, nil); err != nil {
			t.Fatal(err)
		}
	}
	records, err := readRecords(root)
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, r := range records {
		files = append(files, r.file())
	}
	if want := []string{"fuzz.fuzztime-10m.json", "fuzz.json"}; !slices.Equal(files, want) {
		t.Errorf("records %q, want %q", files, want)
	}
	inGit(t, root, "rm", "-f", "--quiet", "--cached", "--ignore-unmatch", "evidence/fuzz.json")
	if err := os.Remove(filepath.Join(root, directory, "fuzz.json")); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := check(t.Context(), &out, root, []string{"fuzz"}); err == nil || !strings.Contains(out.String(), "| fuzz FUZZTIME=10m | a part |") {
		t.Errorf("evidence by a part (%v):\n%s", err, &out)
	}
}

func TestRecordsHaveNoNamesOfMachinesAndNoPaths(t *testing.T) {
	root := repository(t)
	if err := record(t, root, nil, "seed: 12 (repeat with KILN_SEED=12)\n"+twoPackages, nil); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(root, directory, "fuzz.json"))
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{host, root, os.TempDir() + "/", "/home", "/root"} {
		if strings.Contains(string(raw), name) {
			t.Errorf("the record has %q:\n%s", name, raw)
		}
	}
}

func TestARecordInTheWrongFileIsAnError(t *testing.T) {
	root := t.TempDir()
	write(t, root, "evidence/test-e2e.json", `{"target": "fuzz"}`)
	if _, err := readRecords(root); err == nil || !strings.Contains(err.Error(), "fuzz.json") {
		t.Errorf("error %v", err)
	}
}

// proofs returns a valid record of each suite that a release needs.
func proofs(tree string) []Record {
	var records []Record
	for _, name := range required() {
		records = append(records, Record{
			Target: name, Result: passed, Tree: tree, Commit: "0123456789abcdef", Started: time.Date(2026, 11, 28, 1, 2, 3, 0, time.UTC), Seconds: 90,
			Counts:  Counts{Specs: Numbers{Passed: 7}},
			Machine: Machine{Cores: 2, MemoryGiB: 8, Kernel: "6.12", Distribution: "Debian"},
		})
	}
	return records
}

func TestAReleaseNeedsAValidRecordOfEachSuite(t *testing.T) {
	for _, name := range []string{"test", "test-e2e", "test-timing", "test-long", "test-kernel", "conformance", "faults", "test-install", "test-image"} {
		if !slices.Contains(required(), name) {
			t.Errorf("a release does not need %s", name)
		}
	}
	text, err := releasePage(proofs("tree"), "tree", false)
	if err != nil || !strings.Contains(text, proven) {
		t.Errorf("with all records: %v\n%s", err, text)
	}
	for name, change := range map[string]func(*Record){
		"of another product":       func(r *Record) { r.Tree = "other" },
		"of a failure":             func(r *Record) { r.Result = failed },
		"of a part":                func(r *Record) { r.Settings = []string{"GROUP=main"} },
		"without a test":           func(r *Record) { r.Counts = Counts{} },
		"of another suite instead": func(r *Record) { r.Target = "test-watches" },
	} {
		records := proofs("tree")
		change(&records[3])
		want := required()[3]
		if _, err := releasePage(records, "tree", false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a record %s: error %v, want one with %s", name, err, want)
		}
		if text, err := releasePage(records, "tree", true); err != nil || !strings.Contains(text, unproven) || strings.Contains(text, proven) {
			t.Errorf("a record %s, without evidence: %v\n%s", name, err, text)
		}
	}
	if text, err := releasePage(proofs("tree"), "tree", true); err != nil || !strings.Contains(text, proven) {
		t.Errorf("EVIDENCE=none with all records: %v\n%s", err, text)
	}
}

func TestAReleaseHasThePageOfItsCommit(t *testing.T) {
	root := repository(t)
	dist := t.TempDir()
	if err := release(t.Context(), root, dist, false); err == nil {
		t.Error("a release without records")
	}
	if err := release(t.Context(), root, dist, true); err != nil {
		t.Fatal(err)
	}
	one, err := os.ReadFile(filepath.Join(dist, pageFile))
	if err != nil {
		t.Fatal(err)
	}
	clone := filepath.Join(t.TempDir(), "clone")
	inGit(t, root, "clone", "--quiet", root, clone)
	if err := release(t.Context(), clone, dist, true); err != nil {
		t.Fatal(err)
	}
	two, err := os.ReadFile(filepath.Join(dist, pageFile))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(one), string(two)); diff != "" || !strings.Contains(string(one), unproven) {
		t.Errorf("pages of two clones differ or have no sentence:\n%s\n%s", one, diff)
	}
}
