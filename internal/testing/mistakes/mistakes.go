// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mistakes compares what users see with pages of the documentation, for tests: after a typical mistake (tests in the packages that report it call Sees), and
// when they look for the cause of a symptom.
package mistakes

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Page is the path of a page in the repository. Its rows have a number, a mistake or a symptom, messages in typographic quotes, and what to do.
type Page string

// The pages.
const (
	Mistakes Page = "docs/user/mistakes.md"
	Symptoms Page = "docs/operations/symptoms.md"
)

// ellipsis stands in the page for text that differs between clusters.
const ellipsis = "…"

// Row of a page.
type Row struct {
	// Number of the row, from 1.
	Number int
	Seen   []Message
}

// Message is what a user sees. Where is the page's text before it.
type Message struct{ Where, Text string }

// In reports whether text contains the parts of the message in their order.
func (m Message) In(text string) bool {
	for part := range strings.SplitSeq(m.Text, ellipsis) {
		_, after, found := strings.Cut(text, strings.TrimSpace(part))
		if !found {
			return false
		}
		text = after
	}
	return true
}

// Sees fails the test if what a user got does not contain each message of a mistake.
func Sees(t testing.TB, number int, got string) {
	t.Helper()
	for _, message := range Mistakes.Of(t, number).Seen {
		if !message.In(got) {
			t.Errorf("row %d of %s has the message %q, but users get %q", number, Mistakes, message.Text, got)
		}
	}
}

// Of returns a row of the page.
func (p Page) Of(t testing.TB, number int) Row {
	t.Helper()
	for _, r := range p.Read(t) {
		if r.Number == number {
			return r
		}
	}
	t.Fatalf("%s has no row %d", p, number)
	return Row{}
}

// Read returns the rows of the page.
func (p Page) Read(t testing.TB) (rows []Row) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), string(p)))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		number, err := strconv.Atoi(strings.TrimSpace(cells[0]))
		if err != nil || len(cells) != 4 {
			continue
		}
		rows = append(rows, Row{Number: number, Seen: messages(cells[2])})
	}
	return rows
}

// messages returns the messages of a cell, which are in typographic quotes.
func messages(cell string) (all []Message) {
	for {
		where, rest, found := strings.Cut(cell, "“")
		if !found {
			return all
		}
		text, after, _ := strings.Cut(rest, "”")
		all, cell = append(all, Message{Where: where, Text: text}), after
	}
}

// root returns the directory of the repository.
func root(t testing.TB) string {
	t.Helper()
	directory, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; directory != filepath.Dir(directory); directory = filepath.Dir(directory) {
		if _, err := os.Stat(filepath.Join(directory, "go.mod")); err == nil {
			return directory
		}
	}
	t.Fatal("this is not the repository")
	return ""
}
