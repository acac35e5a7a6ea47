// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package match

import (
	"errors"
	"strings"
	"testing"
)

// FuzzParse searches for panics of the parser, and for errors whose position does not match their text.
func FuzzParse(f *testing.F) {
	for _, text := range good {
		f.Add(text)
	}
	for _, tt := range append(bad, strict...) {
		f.Add(tt.match)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, err := Parse(text)
		var wrong *Error
		if err == nil {
			// OVN puts a match in parentheses, where it must have the same meaning.
			if _, err := Parse("(" + text + ") && 1"); err != nil {
				t.Errorf("%q is taken, and in parentheses not: %v", text, err)
			}
			return
		}
		if !errors.As(err, &wrong) || !strings.HasPrefix(text[wrong.Offset:], wrong.Text) {
			t.Errorf("%q: %v does not point at it", text, err)
		}
	})
}
