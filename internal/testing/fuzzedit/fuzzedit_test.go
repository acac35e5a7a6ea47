// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package fuzzedit

import (
	"encoding/json"
	"testing"
)

func TestApply(t *testing.T) {
	const object = `{"metadata":{"name":"a"},"spec":{"list":[{"x":1,"y":2}],"n":3}}`
	tests := []struct{ name, edits, want string }{
		{"nothing", "", object},
		{"a number", "/spec/n=4", `{"metadata":{"name":"a"},"spec":{"list":[{"x":1,"y":2}],"n":4}}`},
		{"text", "/spec/n=ip4 && tcp == 1", `{"metadata":{"name":"a"},"spec":{"list":[{"x":1,"y":2}],"n":"ip4 && tcp == 1"}}`},
		{"text with an escape", `/spec/n="1\u0000"`, `{"metadata":{"name":"a"},"spec":{"list":[{"x":1,"y":2}],"n":"1\u0000"}}`},
		{"text that is not UTF-8", "/spec/n=\xff", `{"metadata":{"name":"a"},"spec":{"list":[{"x":1,"y":2}],"n":"\ufffd"}}`},
		{"a key with a slash", "/metadata/annotations/a.b~1c=", `{"metadata":{"annotations":{"a.b/c":""},"name":"a"},"spec":{"list":[{"x":1,"y":2}],"n":3}}`},
		{"an element that repeats the last", "/spec/list/1/x=9", `{"metadata":{"name":"a"},"spec":{"list":[{"x":1,"y":2},{"x":9,"y":2}],"n":3}}`},
		{"a new list", "/spec/new/0=a\n/spec/new/1=b", `{"metadata":{"name":"a"},"spec":{"list":[{"x":1,"y":2}],"n":3,"new":["a","b"]}}`},
		{"fields without a value", "/spec/n\n/spec/list/0/y", `{"metadata":{"name":"a"},"spec":{"list":[{"x":1}]}}`},
		{"an element without a value", "/spec/list/0", `{"metadata":{"name":"a"},"spec":{"list":[],"n":3}}`},
		{"no pointer", "spec=1", ""},
		{"a great index", "/spec/list/1000=1", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var in map[string]any
			if err := json.Unmarshal([]byte(object), &in); err != nil {
				t.Fatal(err)
			}
			out, err := Apply(in, tt.edits)
			if tt.want == "" {
				if err == nil {
					t.Errorf("got %v, want an error", out)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, _ := json.Marshal(out)
			var want any
			if err := json.Unmarshal([]byte(tt.want), &want); err != nil {
				t.Fatal(err)
			}
			if text, _ := json.Marshal(want); string(got) != string(text) {
				t.Errorf("got %s, want %s", got, text)
			}
			if before, _ := json.Marshal(in); string(before) != object {
				t.Errorf("the argument is now %s", before)
			}
		})
	}
}
