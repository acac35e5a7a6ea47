// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package match

import (
	"fmt"
	"unicode/utf8"
)

// maxDepth is the maximum depth of parentheses. OVN accepts 100 and adds some of its own.
const maxDepth = 80

// parser is a recursive descent parser. After the first error it ignores the rest of the input.
type parser struct {
	lexer
	token token
	match Match
	err   *Error
	depth int
	not   bool // inside an odd number of `!`
	// packet is the packet of Evaluate, nil while a match is only parsed. Comparisons and expressions then have no meaning.
	packet Packet
}

func (p *parser) advance() {
	if p.err == nil {
		p.token = p.next()
		if p.token.kind == invalid {
			p.failAt(p.token, "%s", p.token.problem)
		}
	}
}

// fail records an error at the current token.
func (p *parser) fail(format string, args ...any) { p.failAt(p.token, format, args...) }

func (p *parser) failAt(t token, format string, args ...any) {
	if p.err == nil {
		prefix := ""
		if t.kind == addressSet || t.kind == portGroup {
			prefix = string(t.kind)
		}
		p.err = &Error{
			Offset: t.offset, Character: utf8.RuneCountInString(p.text[:t.offset]) + 1, Text: prefix + t.text, Message: fmt.Sprintf(format, args...),
		}
	}
	p.token.kind = end
}

// take consumes the current token if it is of this kind, and reports whether it was.
func (p *parser) take(k kind) bool {
	if p.err != nil || p.token.kind != k {
		return false
	}
	p.advance()
	return true
}

// expression = term { "&&" term } | term { "||" term }
func (p *parser) expression() Truth {
	truth := p.term()
	operator := p.token.kind
	if operator != "&&" && operator != "||" {
		return truth
	}
	// OVN negates the parts of a negated expression (ovn-sb(5), "Prerequisites"): && becomes ||.
	every := (operator == "&&") != p.not
	for p.take(operator) {
		if part := p.term(); every {
			truth = min(truth, part)
		} else {
			truth = max(truth, part)
		}
	}
	if p.token.kind == "&&" || p.token.kind == "||" {
		p.fail("&& and || are mixed: put parentheses around each group")
	}
	return truth
}

// term = [ "!" ] primary
func (p *parser) term() Truth {
	not := p.token
	if !p.take("!") {
		truth, _ := p.primary()
		return truth
	}
	p.not = !p.not
	truth, atomic := p.primary()
	p.not = !p.not
	if !atomic {
		p.failAt(not, "put parentheses around the negated expression")
	}
	return truth
}

// primary = "(" expression ")" | comparison | "0" | "1". It is atomic if "!" may precede it.
func (p *parser) primary() (truth Truth, atomic bool) {
	switch p.token.kind {
	case "(":
		return p.parenthesis(), true
	case identifier:
		return p.fieldFirst()
	case integer, stringText, addressSet, portGroup, "{":
		return p.constantFirst()
	case end:
		p.fail("a comparison is missing, like ip4.src == 10.0.0.0/8")
	default:
		p.fail("a comparison should stand here, like ip4.src == 10.0.0.0/8")
	}
	return Unknown, true
}

func (p *parser) parenthesis() Truth {
	if p.depth++; p.depth > maxDepth {
		p.fail("more than %d parentheses are open", maxDepth)
	}
	p.advance()
	truth := p.expression()
	p.depth--
	if !p.take(")") {
		p.fail("the parenthesis is not closed: write )")
	}
	return truth
}

// fieldFirst = field [ relation constants ]
func (p *parser) fieldFirst() (truth Truth, atomic bool) {
	if p.token.text == "is_chassis_resident" {
		return p.resident(), true
	}
	name := p.token
	f := p.field()
	relation := p.token
	if !isRelation(relation.kind) {
		switch {
		case p.err != nil:
		case f.bits == 0:
			p.fail(`%s is a string: compare it, like %s == "name"`, name.text, name.text)
		case f.selected > 1 && !p.not:
			p.failAt(name, "it has %d bits: compare it, like %s != 0", f.selected, name.text)
		}
		return p.compare(name, f, token{kind: "!=", offset: name.offset, text: name.text}, constants{list: []constant{{value: zero}}}), true
	}
	p.advance()
	return p.compare(name, f, relation, p.constants()), false
}

// resident = "is_chassis_resident" "(" string ")"
func (p *parser) resident() Truth {
	p.advance()
	opened := p.take("(")
	port := p.token
	if !opened || !p.take(stringText) || !p.take(")") {
		p.fail(`write is_chassis_resident("port")`)
	}
	if p.packet == nil || p.err != nil {
		return Unknown
	}
	return p.packet.Resident(unquoted(port.text)).negatedIf(p.not)
}

// constantFirst = constants relation field [ relation constants ] | "0" | "1"
func (p *parser) constantFirst() (truth Truth, atomic bool) {
	first := p.token
	low := p.constants()
	relation := p.token
	if !isRelation(relation.kind) {
		if first.text == "0" || first.text == "1" {
			return truthOf((first.text == "1") != p.not), true
		}
		p.fail("a constant alone is no comparison: write field == %s", first.text)
		return Unknown, true
	}
	p.advance()
	name := p.token
	if name.kind != identifier {
		p.fail("the name of a field should stand here, like tcp.dst")
		return Unknown, true
	}
	f := p.field()
	second := p.token
	if !isRelation(second.kind) {
		return p.compare(name, f, turned(relation), low), false
	}
	p.advance()
	high := p.constants()
	if !sameDirection(relation.kind, second.kind) {
		p.failAt(second, "a range has the form 1 <= field <= 9 or 9 >= field >= 1")
	}
	above, below := p.compare(name, f, turned(relation), low), p.compare(name, f, second, high)
	if p.not {
		return max(above, below), false
	}
	return min(above, below), false
}

// field = name [ "[" bit [ ".." bit ] "]" ]
func (p *parser) field() symbol {
	name := p.token
	f, ok := symbols[name.text]
	if p.packet != nil && name.text == looped {
		f, ok = symbol{bits: 1, selected: 1, level: ordinal}, true
	}
	if !ok {
		p.fail("%s", unknown(name.text))
		return symbol{}
	}
	p.match.Fields = append(p.match.Fields, name.text)
	p.advance()
	if !p.take("[") {
		return f
	}
	low := p.bit()
	high := low
	if p.take("..") {
		high = p.bit()
	}
	if !p.take("]") {
		p.fail("the bits are not closed: write ]")
	}
	whole := low == 0 && high == f.bits-1
	switch {
	case f.bits == 0:
		p.failAt(name, "it is a string and has no bits")
	case low > high:
		p.failAt(name, "write the lower bit first: %s[%d..%d]", name.text, high, low)
	case high >= f.bits:
		p.failAt(name, "it has bits 0 to %d", f.bits-1)
	case f.level == nominal && !whole:
		p.failAt(name, "it can only be compared as a whole")
	}
	if p.err == nil {
		f.selected, f.low = high-low+1, low
	}
	return f
}

// bit returns the number of a bit; -1 after an error.
func (p *parser) bit() int {
	t := p.token
	if !p.take(integer) || t.value.format != decimal || t.value.mask != nil || t.value.value.BitLen() > 16 {
		p.failAt(t, "the number of a bit should stand here")
		return -1
	}
	return int(t.value.value.Int64())
}
