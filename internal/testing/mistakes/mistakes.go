// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mistakes compares what users see after a typical mistake with docs/user/mistakes.md, for tests. Tests in the packages that report the
// mistakes call Sees.
package mistakes

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Page is the path of the page in the repository.
const Page = "docs/user/mistakes.md"

// ellipsis stands in the page for text that differs between clusters.
const ellipsis = "…"

// Mistake is a row of the page.
type Mistake struct {
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

// Sees fails the test if what a user got does not contain each message of a row.
func Sees(t testing.TB, number int, got string) {
	t.Helper()
	for _, message := range Of(t, number).Seen {
		if !message.In(got) {
			t.Errorf("row %d of %s has the message %q, but users get %q", number, Page, message.Text, got)
		}
	}
}

// Of returns a row of the page.
func Of(t testing.TB, number int) Mistake {
	t.Helper()
	for _, m := range Read(t) {
		if m.Number == number {
			return m
		}
	}
	t.Fatalf("%s has no row %d", Page, number)
	return Mistake{}
}

// Read returns the rows of the page.
func Read(t testing.TB) (rows []Mistake) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), Page))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		number, err := strconv.Atoi(strings.TrimSpace(cells[0]))
		if err != nil || len(cells) != 4 {
			continue
		}
		rows = append(rows, Mistake{Number: number, Seen: messages(cells[2])})
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
