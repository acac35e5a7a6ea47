// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package match

import (
	"encoding/json"
	"math/big"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// kind is the kind of a token; for punctuation it is the text.
type kind string

const (
	end        kind = "end"
	invalid    kind = "invalid" // token.problem has the reason
	identifier kind = "identifier"
	stringText kind = "string"
	integer    kind = "integer"
	addressSet kind = "$"
	portGroup  kind = "@"
)

// format is the notation of a constant.
type format uint8

const (
	decimal format = iota
	hexadecimal
	ipv4
	ipv6
	ethernet
)

// width is the number of bits of a constant with the format; 0 if it depends on the value.
var width = map[format]int{ipv4: 32, ipv6: 128, ethernet: 48}

// constant is an integer, with a mask or without.
type constant struct {
	format format
	value  *big.Int
	mask   *big.Int // nil without one
}

// bits is the width of the narrowest field that can hold the constant.
func (c constant) bits() int {
	switch {
	case c.mask != nil:
		return c.mask.BitLen()
	case width[c.format] > 0:
		return width[c.format]
	}
	return c.value.BitLen()
}

type token struct {
	kind    kind
	offset  int
	text    string // as written; the name of an identifier, set or group
	value   constant
	problem string
}

// lexer splits a match into tokens.
type lexer struct {
	text string
	at   int
}

const (
	digits    = "0123456789"
	hexDigits = digits + "abcdefABCDEF"
)

// punctuation, longer tokens first.
var punctuation = []string{"==", "!=", "<=", ">=", "&&", "||", "..", "<", ">", "!", "(", ")", "{", "}", "[", "]", ","}

// misspelt maps characters of other languages' operators to a hint.
var misspelt = map[byte]string{
	'=': "write == to compare", '&': "write &&", '|': "write ||", '/': "a mask stands right behind its value, like 10.0.0.0/8, and there are no comments here",
	'\'': "write strings in double quotes", '-': "write a range as 1 <= field <= 9",
}

// next returns the next token.
func (l *lexer) next() token {
	l.at += len(l.text[l.at:]) - len(strings.TrimLeft(l.text[l.at:], " \t\n\r\v\f"))
	rest := l.text[l.at:]
	start := token{offset: l.at}
	if rest == "" {
		start.kind = end
		return start
	}
	switch c := rest[0]; {
	case c == '"':
		return l.string(start)
	case c == '$' || c == '@':
		return l.name(start)
	case strings.IndexByte(digits, c) >= 0, strings.HasPrefix(rest, "::"), startsAddress(rest):
		return l.integer(start)
	case strings.HasPrefix(rest, ".."):
	case isNameStart(c):
		start.kind = identifier
		start.text = rest[:nameLength(rest)]
		l.at += len(start.text)
		return start
	}
	for _, p := range punctuation {
		if strings.HasPrefix(rest, p) {
			start.kind, start.text = kind(p), p
			l.at += len(p)
			return start
		}
	}
	problem, ok := misspelt[rest[0]]
	if !ok {
		problem = "this character means nothing in a match: remove it"
	}
	return l.wrong(start, 1, problem)
}

// wrong returns an invalid token of n bytes.
func (l *lexer) wrong(t token, n int, problem string) token {
	t.kind, t.text, t.problem = invalid, l.text[t.offset:min(t.offset+n, len(l.text))], problem
	l.at = len(l.text)
	return t
}

// startsAddress reports whether s starts with an Ethernet or IPv6 address. Names contain no colon.
func startsAddress(s string) bool {
	rest := strings.TrimLeft(s, hexDigits)
	return len(rest) < len(s) && strings.HasPrefix(rest, ":")
}

func isNameStart(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '.'
}

func nameLength(s string) int {
	for i := range len(s) {
		if !isNameStart(s[i]) && strings.IndexByte(digits, s[i]) < 0 {
			return i
		}
	}
	return len(s)
}

// name reads `$set` and `@group`.
func (l *lexer) name(t token) token {
	rest := l.text[l.at+1:]
	if rest == "" || !isNameStart(rest[0]) {
		return l.wrong(t, 1, "the name of a set stands right behind it and begins with a letter")
	}
	t.kind = kind(l.text[l.at : l.at+1])
	t.text = rest[:nameLength(rest)]
	l.at += 1 + len(t.text)
	return t
}

// string reads a string, quoted as in JSON.
func (l *lexer) string(t token) token {
	rest := l.text[l.at:]
	for i := 1; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			i++
		case '"':
			if json.Unmarshal([]byte(rest[:i+1]), new(string)) != nil {
				return l.wrong(t, i+1, "this is no string of JSON: write \\\\ for a backslash")
			}
			t.kind, t.text = stringText, rest[:i+1]
			l.at += i + 1
			return t
		}
	}
	return l.wrong(t, len(rest), "the string does not end: close it with a double quote")
}

// integer reads a number or an address, and its mask.
func (l *lexer) integer(t token) token {
	text := numberText(l.text[l.at:])
	value, problem := readConstant(text)
	if problem != "" {
		return l.wrong(t, len(text), problem)
	}
	l.at += len(text)
	if strings.HasPrefix(l.text[l.at:], "/") {
		mask := numberText(l.text[l.at+1:])
		text += "/" + mask
		l.at += 1 + len(mask)
		if problem := value.setMask(mask); problem != "" {
			return l.wrong(t, len(text), problem)
		}
	}
	t.kind, t.text, t.value = integer, text, value
	return t
}

// numberText returns the prefix of s that belongs to one number or address. Two dots end it, and so does a colon after a dot:
// only the last part of an IPv6 address contains dots.
func numberText(s string) string {
	dot := false
	for i := range len(s) {
		switch c := s[i]; {
		case c == '.':
			if strings.HasPrefix(s[i:], "..") {
				return s[:i]
			}
			dot = true
		case c == ':' && !dot:
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
		default:
			return s[:i]
		}
	}
	return s
}

func readConstant(text string) (c constant, problem string) {
	hex, isHex := strings.CutPrefix(strings.ToLower(text), "0x")
	switch {
	case text == "":
		return c, "a number is missing here"
	case strings.Trim(text, digits) == "":
		if len(text) > 1 && text[0] == '0' {
			return c, "a number has no leading zero: remove it"
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return c, "this number is too great: no field holds it"
		}
		return constant{format: decimal, value: new(big.Int).SetUint64(n)}, ""
	case isHex && hex != "" && strings.Trim(hex, hexDigits) == "" && len(strings.TrimLeft(hex, "0")) <= 32:
		n, _ := new(big.Int).SetString(hex, 16)
		return constant{format: hexadecimal, value: n}, ""
	}
	if mac, err := net.ParseMAC(text); err == nil && len(text) == 17 && strings.Count(text, ":") == 5 {
		return constant{format: ethernet, value: new(big.Int).SetBytes(mac)}, ""
	}
	addr, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return c, "this is no number and no address"
	case addr.Is4():
		return constant{format: ipv4, value: new(big.Int).SetBytes(addr.AsSlice())}, ""
	}
	return constant{format: ipv6, value: new(big.Int).SetBytes(addr.AsSlice())}, ""
}

// setMask sets the mask that follows a value.
func (c *constant) setMask(text string) (problem string) {
	mask, problem := readConstant(text)
	if problem != "" {
		return "the mask is wrong: " + problem
	}
	size := width[c.format]
	switch {
	case mask.format == c.format:
		c.mask = mask.value
	case (c.format == ipv4 || c.format == ipv6) && mask.format == decimal:
		if mask.value.Cmp(big.NewInt(int64(size))) > 0 {
			return "the prefix is longer than the address: it has " + strconv.Itoa(size) + " bits"
		}
		length := uint(mask.value.Uint64())
		ones := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), length), big.NewInt(1))
		c.mask = ones.Lsh(ones, uint(size)-length)
	case c.format == decimal && mask.format == hexadecimal && c.value.Sign() == 0:
		c.format, c.mask = hexadecimal, mask.value
	default:
		return "value and mask are written in different ways: write both as numbers, or as addresses"
	}
	return ""
}
