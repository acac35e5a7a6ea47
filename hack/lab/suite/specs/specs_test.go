// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// suite writes the files of a suite to a directory.
func suite(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("package e2e\n"+text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestSpecsHaveTheLabelsAndFilesOfTheirContainers(t *testing.T) {
	dir := suite(t, map[string]string{
		"a_test.go": `
const slow = "slow"
var _ = Describe("pods", Label(slow, "pods"), func() {
	BeforeEach(func() { Expect(it.It("no spec")).To(Succeed()) })
	It("start", since("2026"), func(ctx SpecContext) {}, SpecTimeout(1))
	for _, c := range cases {
		It(c.name, Label("all"), func() {})
	}
	shared(&pod)
	pod.also()
	DescribeTable("reach", Label("table"), func(what string) {},
		Entry("a pod", "pod"),
		Entry("a node", Label("node"), "node"))
})`,
		"b_test.go": `
func shared(p *pod) { Context("that "+slow, func() { It("end", Label("ends"), func() {}) }) }
func (p *pod) also() { It("stay", func() { Expect(p.It()).To(Succeed()) }) }
func since(date string) Labels { return Label("unstable", "unstable-"+date) }
func TestE2E(t *testing.T) { RunSpecs(t, "suite") }`,
	})
	got, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []Spec{
		{Text: "pods start", Labels: []string{"slow", "pods", "unstable"}, Files: []string{"a_test.go"}, Line: 6},
		{Text: "pods", Labels: []string{"slow", "pods", "all"}, Files: []string{"a_test.go"}, Line: 8},
		{Text: "pods that slow end", Labels: []string{"slow", "pods", "ends"}, Files: []string{"a_test.go", "b_test.go"}, Line: 3},
		{Text: "pods stay", Labels: []string{"slow", "pods"}, Files: []string{"a_test.go", "b_test.go"}, Line: 4},
		{Text: "pods reach a pod", Labels: []string{"slow", "pods", "table"}, Files: []string{"a_test.go"}, Line: 13},
		{Text: "pods reach a node", Labels: []string{"slow", "pods", "table", "node"}, Files: []string{"a_test.go"}, Line: 14},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestWhatCannotBeReadIsAnError(t *testing.T) {
	for want, text := range map[string]string{
		"a_test.go:2:29: a label is not a constant":         `var _ = Describe("a", Label(labelOf("x")), func() {})`,
		"no container calls specsOf, which declares specs":  `func specsOf() { It("never runs", func() {}) }`,
		"no container calls direct, which declares specs":   "func indirectly() { direct() }\nfunc direct() { It(\"never runs\", func() {}) }",
		"no container calls ofMethod, which declares specs": `func (p *pod) ofMethod() { It("never runs", func() {}) }`,
		"parse the suite": `var _ = Describe("a"`,
		"no container calls onlyEntries, which declares specs":   `func onlyEntries() []TableEntry { return []TableEntry{Entry("a", 1)} }`,
		"no container calls onlyRecursive, which declares specs": `func onlyRecursive() { onlyRecursive(); It("a", func() {}) }`,
	} {
		if _, err := Read(suite(t, map[string]string{"a_test.go": text})); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}
