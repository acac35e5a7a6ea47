// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestTextsAreJudged(t *testing.T) {
	code, pages := judged{comments: &share{limit: 10}, literals: &share{limit: 10}, tests: &share{limit: 10, names: true}}, &share{limit: 10}
	// The texts have markers on purpose.
	source := "// Package p has what is not plain.\npackage p\n\n// F returns the number of pods.\nfunc F() string { return \"nobody has the address 10.0.0.1\" }\n\n" +
		"// short\nvar short = \"in force\"\n" +
		"func TestAWayOutComesAndGoes() {}\nfunc TestRowsOfAVipThatIsGoneGo() {}\nfunc TestAVPCHasARouter() {}\nfunc Nobody() {}\n"
	if err := code.judge("p.go", []byte(source)); err != nil {
		t.Fatal(err)
	}
	judgePage(pages, "p.md", "The pod has an address.\n\n```sh\necho what is this here\n```\n\n| what is it | a table |\n\n- The row is gone by now, they say.\n- A subnet has a gateway.\n")
	for _, tt := range []struct {
		kind          string
		of            *share
		texts, marked int
	}{
		{"comments", code.comments, 2, 1}, {"literals", code.literals, 1, 1}, {"tests", code.tests, 3, 2}, {"sentences", pages, 3, 1},
	} {
		if tt.of.texts != tt.texts || tt.of.marked != tt.marked {
			t.Errorf("%s: %d of %d have a marker, want %d of %d: %v", tt.kind, tt.of.marked, tt.of.texts, tt.marked, tt.texts, tt.of.found)
		}
	}
	for _, tt := range []struct {
		texts, marked int
		want          bool
	}{{100, 1, false}, {100, 2, true}, {0, 0, false}} {
		if s := (&share{limit: 10, texts: tt.texts, marked: tt.marked}); s.exceeded() != tt.want {
			t.Errorf("%d of %d: exceeded %v", tt.marked, tt.texts, !tt.want)
		}
	}
}
