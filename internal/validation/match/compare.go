// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package match

import "math/big"

var zero = new(big.Int)

// constants are a single constant, or a set in curly brackets.
type constants struct {
	first   token
	count   int
	text    bool       // strings or port groups
	curly   bool       // in curly brackets
	list    []constant // the integers among them
	names   []token    // the strings, port groups and address sets among them
	address bool       // one is an address set
}

func isRelation(k kind) bool {
	switch k {
	case "==", "!=", "<", "<=", ">", ">=":
		return true
	}
	return false
}

// turned returns the relation for exchanged sides.
func turned(relation token) token {
	switch relation.kind {
	case "<":
		relation.kind = ">"
	case "<=":
		relation.kind = ">="
	case ">":
		relation.kind = "<"
	case ">=":
		relation.kind = "<="
	}
	return relation
}

func sameDirection(a, b kind) bool {
	less := func(k kind) bool { return k == "<" || k == "<=" }
	greater := func(k kind) bool { return k == ">" || k == ">=" }
	return less(a) && less(b) || greater(a) && greater(b)
}

// constants = constant | "{" constant { [","] constant } "}"
func (p *parser) constants() constants {
	c := constants{first: p.token}
	if !p.take("{") {
		p.constant(&c)
		return c
	}
	c.curly = true
	for {
		p.constant(&c)
		p.take(",")
		if p.err != nil || p.take("}") {
			return c
		}
	}
}

// constant reads one constant into c. All constants of a set have the same type.
func (p *parser) constant(c *constants) {
	t := p.token
	text := t.kind == stringText || t.kind == portGroup
	switch t.kind {
	case integer:
		c.list = append(c.list, t.value)
	case stringText:
		c.names = append(c.names, t)
	case addressSet:
		c.address = true
		c.names = append(c.names, t)
		p.match.AddressSets = append(p.match.AddressSets, t.text)
	case portGroup:
		c.names = append(c.names, t)
		p.match.PortGroups = append(p.match.PortGroups, t.text)
	case "}":
		p.fail("the set is empty: write at least one value")
		return
	case identifier:
		p.fail(`a constant should stand here: names of ports are written "in quotes", sets as $set or @group`)
		return
	default:
		p.fail("a constant should stand here: a number, an address, a string, $set or @group")
		return
	}
	if c.count > 0 && text != c.text {
		p.fail("numbers and strings are mixed in one set: compare them apart")
	}
	c.text = text
	c.count++
	p.advance()
}

// compare checks and evaluates a comparison: the constants must have the field's type, and the field must support the relation.
func (p *parser) compare(name token, f symbol, relation token, c constants) Truth {
	p.check(name, f, relation, c)
	if p.packet == nil || p.err != nil {
		return Unknown
	}
	return p.evaluate(name.text, f, relation.kind, c)
}

func (p *parser) check(name token, f symbol, relation token, c constants) {
	if p.err != nil || !p.fit(name, f, c) {
		return
	}
	equality := relation.kind == "==" || relation.kind == "!="
	if !equality {
		switch {
		case c.curly || c.address || c.text:
			p.failAt(relation, "a set can only be compared with == and !=")
		case f.level != ordinal:
			p.failAt(relation, "%s can only be compared with == and !=", name.text)
		case c.list[0].mask != nil:
			p.failAt(relation, "a value with a mask can only be compared with == and !=: select bits instead, like %s[0..7]", name.text)
		}
		return
	}
	if f.level != nominal {
		return
	}
	if !f.predicate {
		if (relation.kind == "!=") != p.not {
			values := "{1, 2}"
			if f.bits == 0 {
				values = `{"a", "b"}`
			}
			p.failAt(name, "OVN can only compare %s for equality, not for inequality: write the allowed values, like %s == %s",
				name.text, name.text, values)
		}
		return
	}
	for _, value := range c.list {
		positive := value.value.Bit(0) == 1
		if positive != ((relation.kind == "!=") != p.not) {
			continue
		}
		p.failAt(name, "OVN can only test whether %s is true, not whether it is false: write the intended condition instead", name.text)
	}
}

// fit reports whether the constants are possible values of the field.
func (p *parser) fit(name token, f symbol, c constants) bool {
	switch {
	case f.bits == 0 && !c.text:
		p.failAt(c.first, `%s is a string: write "name", or @group`, name.text)
	case f.bits > 0 && c.text:
		p.failAt(c.first, "%s is a number or an address, not a string", name.text)
	}
	for _, value := range c.list {
		switch {
		case value.bits() > f.bits:
			p.failAt(c.first, "%s holds %d bits, and this takes %d", name.text, f.bits, value.bits())
		case f.ip6 && value.format == ipv4:
			p.failAt(c.first, "%s holds IPv6 addresses, and this is an IPv4 one", name.text)
		}
	}
	return p.err == nil
}
