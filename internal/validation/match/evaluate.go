// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package match

import (
	"encoding/json"
	"math/big"
)

// Truth is the value of a match for a packet of which not everything is known.
type Truth int8

// Values of Truth, in the order in which && takes the least and || the greatest.
const (
	False Truth = iota
	Unknown
	True
)

func truthOf(b bool) Truth {
	if b {
		return True
	}
	return False
}

func (t Truth) negatedIf(not bool) Truth {
	if not {
		return True - t
	}
	return t
}

// Packet is a packet for Evaluate. Its methods get names as in OVN's matches.
type Packet interface {
	// Field returns the value of a field or predicate. It returns False if the packet has no such field, as an IPv4 packet has no ip6.src:
	// no comparison with it is true. It returns Unknown if the packet may have the field, with any value.
	Field(name string) (value *big.Int, has Truth)
	// Port returns the name of inport or outport; Unknown if it is not known.
	Port(field string) (name string, has Truth)
	// InGroup reports whether a port is in a port group.
	InGroup(port, group string) Truth
	// InSet reports whether the value of a field is in an address set.
	InSet(value *big.Int, field, set string) Truth
	// Resident reports whether a port is on the chassis that evaluates the match.
	Resident(port string) Truth
}

// looped is the flag of packets that a load balancer returned to their sender. Rules of users cannot name it.
const looped = "flags.loopback"

// Evaluate returns whether a packet satisfies a match: of a user, or of a rule that Kiln wrote. The error is of Parse.
func Evaluate(text string, packet Packet) (Truth, error) {
	p := parser{lexer: lexer{text: text}, packet: packet}
	p.advance()
	truth := p.expression()
	if p.err == nil && p.token.kind != end {
		p.fail("the match should end here: join parts with && or ||")
	}
	if p.err != nil {
		return Unknown, p.err
	}
	return truth, nil
}

// evaluate returns the value of a comparison. In a negated expression it is the value of the opposite comparison: the packet has to have the field
// in both cases, because OVN adds prerequisites after it has resolved negations.
func (p *parser) evaluate(name string, f symbol, relation kind, c constants) Truth {
	if f.bits == 0 {
		port, has := p.packet.Port(name)
		if has != True {
			return has
		}
		return p.anyName(c, func(t token) Truth {
			if t.kind == portGroup {
				return p.packet.InGroup(port, t.text)
			}
			return truthOf(unquoted(t.text) == port)
		}).negatedIf((relation == "!=") != p.not)
	}
	whole, has := p.packet.Field(name)
	if has != True {
		return has
	}
	value := new(big.Int).Rsh(whole, uint(f.low))
	value.And(value, new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), uint(f.selected)), big.NewInt(1)))
	if relation == "==" || relation == "!=" {
		found := p.anyName(c, func(t token) Truth { return p.packet.InSet(value, name, t.text) })
		for _, k := range c.list {
			found = max(found, truthOf(k.equals(value)))
		}
		return found.negatedIf((relation == "!=") != p.not)
	}
	sign := value.Cmp(c.list[0].value)
	return truthOf(map[kind]bool{"<": sign < 0, "<=": sign <= 0, ">": sign > 0, ">=": sign >= 0}[relation] != p.not)
}

// anyName returns whether any of the names of constants is true.
func (p *parser) anyName(c constants, is func(token) Truth) Truth {
	found := False
	for _, t := range c.names {
		found = max(found, is(t))
	}
	return found
}

func (c constant) equals(value *big.Int) bool {
	if c.mask == nil {
		return c.value.Cmp(value) == 0
	}
	return new(big.Int).And(c.value, c.mask).Cmp(new(big.Int).And(value, c.mask)) == 0
}

// unquoted returns the text of a string, which the lexer has checked.
func unquoted(text string) (s string) {
	_ = json.Unmarshal([]byte(text), &s)
	return s
}
