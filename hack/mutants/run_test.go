// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// module writes a module with a function, a test of it, and a test that builds and runs a program with it, and returns its directory.
func module(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":       "module example.com/m\n\ngo 1.24\n",
		"sign/sign.go": "package sign\n\n// Of returns the sign of n.\nfunc Of(n int) int {\n\tif n < 0 {\n\t\treturn -1\n\t}\n\treturn 1 + 0*n\n}\n",
		"sign/sign_test.go": "package sign\n\nimport \"testing\"\n\n" +
			"func TestNegative(t *testing.T) {\n\tif Of(-5) != -1 {\n\t\tt.Error(\"wrong\")\n\t}\n}\n",
		"cmd/main.go": "package main\n\nimport (\n\t\"os\"\n\n\t\"example.com/m/sign\"\n)\n\nfunc main() { os.Exit(1 + sign.Of(-1)) }\n",
		"cmd/main_test.go": "package main\n\nimport (\n\t\"os/exec\"\n\t\"testing\"\n)\n\n" +
			"func TestProgram(t *testing.T) {\n\tif out, err := exec.Command(\"go\", \"run\", \".\").CombinedOutput(); err != nil {\n\t\tt.Errorf(\"%v %s\", err, out)\n\t}\n}\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestVerdicts(t *testing.T) {
	r := runner{root: module(t), timeout: time.Minute, limit: time.Second}
	negative := mutant{file: "sign/sign.go", old: "return -1", new: "return -2"}
	with := func(change func(*mutant)) mutant {
		m := negative
		change(&m)
		return m
	}
	for name, c := range map[string]struct {
		mutant  mutant
		verdict verdict
		detail  string
	}{
		"a test fails":                       {negative, killed, "killed by TestNegative"},
		"a test of a program that it builds": {with(func(m *mutant) { m.tests = []string{"./cmd"} }), killed, "killed by TestProgram"},
		"no test fails":                      {with(func(m *mutant) { m.old, m.new = "n < 0", "n < -1" }), survived, "all tests pass"},
		"it does not compile":                {with(func(m *mutant) { m.new = "return none" }), invalid, "undefined: none"},
		"the text is not there":              {with(func(m *mutant) { m.old = "return 0" }), invalid, "0 times, want once"},
		"the text is there twice":            {with(func(m *mutant) { m.old = "Of" }), invalid, "2 times, want once"},
		"the expression matches no test":     {with(func(m *mutant) { m.run = "Positive" }), invalid, "no test matches"},
		"the tests panic":                    {with(func(m *mutant) { m.new = "panic(n)" }), killed, "killed by TestNegative"},
		"the tests do not come to an end":    {with(func(m *mutant) { m.new = "for {\n\t\t}" }), killed, "killed by a test that hangs: TestNegative"},
	} {
		t.Run(name, func(t *testing.T) {
			r := r
			if strings.Contains(name, "end") {
				r.timeout = time.Second
			}
			if got := r.test(t.Context(), c.mutant); got.verdict != c.verdict || !strings.Contains(got.detail, c.detail) {
				t.Errorf("got %s, %q, want %s, %q", got.verdict, got.detail, c.verdict, c.detail)
			}
		})
	}
}

func TestSurvivorsMayNotChange(t *testing.T) {
	mutants := []mutant{{id: "new"}, {id: "known", survives: "equivalent"}, {id: "dead"}, {id: "wrong"}}
	results := map[string]result{"new": {survived, ""}, "known": {survived, ""}, "dead": {killed, ""}, "wrong": {invalid, "twice"}}
	err := summary(mutants, results)
	if err == nil || err.Error() != "new survives: write a test that fails with it\nwrong: the table is wrong: twice" {
		t.Errorf("got %v", err)
	}
	results["new"], results["wrong"] = result{killed, ""}, result{killed, ""}
	if err := summary(mutants, results); err != nil {
		t.Errorf("all verdicts agree with the table: %v", err)
	}
	results["known"] = result{killed, "killed by TestIt"}
	if err := summary(mutants, results); err == nil || !strings.Contains(err.Error(), "known is a known survivor, and killed by TestIt") {
		t.Errorf("a killed survivor: %v", err)
	}
}

func TestThePageKeepsVerdictsOfOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(path, []byte("before\n"+tableBegins+"\n| `a` | old text | killed by TestA |\n| `gone` | x | killed |\n"+tableEnds+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mutants := []mutant{{id: "b", bug: "b is wrong"}, {id: "a", bug: "a is wrong"}, {id: "c", bug: "c is wrong", survives: "equivalent"}}
	if err := record(path, mutants, map[string]result{"b": {killed, "killed by TestB"}}); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := "before\n" + tableBegins + "\n\n| mutant | defect | verdict |\n|---|---|---|\n| `b` | b is wrong | killed by `TestB` |\n| `a` | a is wrong | killed by TestA |\n" +
		"| `c` | c is wrong | survives: equivalent |\n\n" + tableEnds + "\nafter\n"
	if string(content) != want {
		t.Errorf("the page is\n%s\nwant\n%s", content, want)
	}
}
