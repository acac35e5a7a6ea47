// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

// Package match parses OVN's match language, in which users write ACLs and routing policies (ovn-sb(5), Logical_Flow, match).
// OVN accepts every match that this package accepts. Every node logs a match that OVN cannot parse, and the rule has no effect
// at all, even if its action is drop.
//
// The package rejects some matches that OVN accepts: registers, flags and connection marks, which are internal to OVN and
// change with its versions; comments, which would hide the text that OVN appends to the match; and IPv4 constants for IPv6
// fields.
package match

import (
	"fmt"
	"slices"
)

// Match lists the names to which a match refers.
type Match struct {
	// Fields are the fields and predicates of the match, sorted and without duplicates.
	Fields []string
	// AddressSets are the names after `$`, PortGroups those after `@`. Parse does not check that they exist.
	AddressSets []string
	PortGroups  []string
}

// Uses reports whether the match refers to a field.
func (m Match) Uses(field string) bool { return slices.Contains(m.Fields, field) }

// Error is a syntax or type error in a match.
type Error struct {
	// Offset of the error in bytes.
	Offset int
	// Character is the position of the error in characters, from 1.
	Character int
	// Text is the erroneous text; empty at the end of the match.
	Text string
	// Message describes the error and the fix.
	Message string
}

// Error returns the position of the error and the fix.
func (e *Error) Error() string {
	if e.Text == "" {
		return "at its end: " + e.Message
	}
	return fmt.Sprintf("at character %d, `%s`: %s", e.Character, e.Text, e.Message)
}

// Parse parses a match. The error is an *Error.
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
