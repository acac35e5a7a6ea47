// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package match reads OVN's language of matches, in which users write ACLs and routing policies (ovn-sb(5), Logical_Flow, match). What it
// takes OVN takes: a match that OVN cannot read is logged by every node and has no effect at all, not even when it is to drop.
//
// It refuses a little more than OVN does: registers, flags and connection marks, whose meaning is OVN's own and changes with its
// versions; comments, which would swallow what OVN writes behind the match; and IPv4 constants for IPv6 fields.
package match

import (
	"fmt"
	"slices"
)

// Match is what a match refers to.
type Match struct {
	// Fields and predicates that it looks at, in order and without duplicates.
	Fields []string
	// AddressSets are the names behind `$`, PortGroups those behind `@`. Whether they exist is not checked here.
	AddressSets []string
	PortGroups  []string
}

// Uses reports whether the match looks at a field.
func (m Match) Uses(field string) bool { return slices.Contains(m.Fields, field) }

// Error is what is wrong with a match.
type Error struct {
	// Offset in bytes of what is wrong.
	Offset int
	// Text that is wrong; empty at the end of the match.
	Text string
	// Message says what is wrong and what to write.
	Message string
}

// Error says where the match is wrong, counted in characters from 1, and what to write.
func (e *Error) Error() string {
	if e.Text == "" {
		return "at its end: " + e.Message
	}
	return fmt.Sprintf("at character %d, `%s`: %s", e.Offset+1, e.Text, e.Message)
}

// Parse reads a match. The error is an *Error.
func Parse(text string) (Match, error) {
	p := parser{lexer: lexer{text: text}}
	p.advance()
	p.expression()
	if p.err == nil && p.token.kind != end {
		p.fail("the match should end here: join parts with && or ||")
	}
	if p.err != nil {
		return Match{}, p.err
	}
	for _, list := range []*[]string{&p.match.Fields, &p.match.AddressSets, &p.match.PortGroups} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return p.match, nil
}
