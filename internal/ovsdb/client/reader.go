// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/kiln-net/kiln/internal/intern"
)

// reader reads values in OVSDB's notation (RFC 7047, section 5.1) from well-formed JSON. It builds no intermediate values,
// because the first reply is the whole database. It stores its first error in err and then reads nothing more.
type reader struct {
	in  []byte
	at  int
	err error
}

// peek returns the next byte that is not white space; 0 at the end and after an error.
func (r *reader) peek() byte {
	for r.err == nil && r.at < len(r.in) {
		switch c := r.in[r.at]; c {
		case ' ', '\t', '\n', '\r':
			r.at++
		default:
			return c
		}
	}
	return 0
}

func (r *reader) fail(expected string) {
	r.at = min(r.at, len(r.in))
	if r.err == nil {
		r.err = fmt.Errorf("expected %s at %.40q", expected, r.in[r.at:])
	}
}

// take consumes one byte if it is c, and reports whether it was.
func (r *reader) take(c byte) bool {
	if r.peek() != c {
		return false
	}
	r.at++
	return true
}

func (r *reader) expect(c byte) {
	if !r.take(c) {
		r.fail(strconv.QuoteRune(rune(c)))
	}
}

// list reads an array and calls element to read each of its values.
func (r *reader) list(element func()) {
	r.expect('[')
	for more := !r.take(']'); more && r.err == nil; more = !r.take(']') {
		if element(); r.peek() != ']' {
			r.expect(',')
		}
	}
}

// object reads an object and calls member to read each of its values; member must not retain key.
func (r *reader) object(member func(key []byte)) {
	r.expect('{')
	for more := !r.take('}'); more && r.err == nil; more = !r.take('}') {
		key := r.string()
		r.expect(':')
		if member(key); r.peek() != '}' {
			r.expect(',')
		}
	}
}

// value skips the next value and returns its JSON.
func (r *reader) value() []byte {
	first := r.peek()
	begin := r.at
	switch first {
	case '"':
		r.string()
	case '[':
		r.list(func() { r.value() })
	case '{':
		r.object(func([]byte) { r.value() })
	default:
		r.literal()
	}
	return r.in[begin:r.at]
}

// literal reads a number, true, false or null.
func (r *reader) literal() []byte {
	r.peek()
	begin := r.at
	for r.err == nil && r.at < len(r.in) {
		switch r.in[r.at] {
		case ',', ']', '}', ':', '"', '[', '{', ' ', '\t', '\n', '\r':
			if r.at == begin {
				r.fail("a value")
			}
			return r.in[begin:r.at]
		}
		r.at++
	}
	return r.in[begin:r.at]
}

// string reads a string.
func (r *reader) string() []byte {
	r.expect('"')
	begin, plain := r.at, true
	for r.err == nil && r.at < len(r.in) {
		switch c := r.in[r.at]; {
		case c == '"':
			r.at++
			if plain {
				return r.in[begin : r.at-1]
			}
			return r.unquote(r.in[begin-1 : r.at])
		case c == '\\':
			plain = false
			r.at++
		case c >= 0x80:
			plain = false
		}
		r.at++
	}
	r.fail("the end of a string")
	return nil
}

func (r *reader) unquote(quoted []byte) []byte {
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil && r.err == nil {
		r.err = err
	}
	return []byte(s)
}

// text reads a string, or the UUID of ["uuid", UUID]. It interns strings, because many rows have the same ones.
func (r *reader) text() string {
	if r.peek() != '[' {
		return intern.Bytes(r.string())
	}
	r.at++
	if string(r.string()) != "uuid" {
		r.fail("a UUID")
	}
	r.expect(',')
	uuid := intern.Bytes(r.string())
	r.expect(']')
	return uuid
}

func (r *reader) integer() int {
	n, err := strconv.ParseFloat(string(r.literal()), 64)
	if err != nil {
		r.fail("a number")
	}
	return int(n)
}

func (r *reader) boolean() bool {
	switch string(r.literal()) {
	case "true":
		return true
	case "false":
	default:
		r.fail("true or false")
	}
	return false
}

// set reads ["set", [VALUE, …]], or a single value, and calls element to read each.
func (r *reader) set(element func()) {
	if !r.tagged("set") {
		element()
		return
	}
	r.list(element)
	r.expect(']')
}

// tagged reads the start of [TAG, …] if it is next, and reports whether it was.
func (r *reader) tagged(tag string) bool {
	before := r.at
	if r.take('[') && r.peek() == '"' && string(r.string()) == tag && r.take(',') {
		return true
	}
	r.at = before
	return false
}

// pairs reads ["map", [[KEY, VALUE], …]] and calls pair to read each key and value.
func (r *reader) pairs(pair func()) {
	if !r.tagged("map") {
		r.fail("a map")
	}
	r.list(func() {
		r.expect('[')
		pair()
		r.expect(']')
	})
	r.expect(']')
}
