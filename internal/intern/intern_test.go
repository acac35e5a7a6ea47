// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package intern

import (
	"fmt"
	"hash/maphash"
	"maps"
	"reflect"
	"strings"
	"testing"
	"unsafe"
)

func TestEqualStringsAreOne(t *testing.T) {
	place := func(s string) uint64 { return maphash.String(seed, s) % stringPlaces }
	first := String(strings.Clone("node-1"))
	for i := range 100 {
		if other := fmt.Sprint("another-", i); place(other) != place("node-1") { // the seed decides which of them displace it
			String(other)
		}
	}
	if second := String(strings.Clone("node-1")); unsafe.StringData(first) != unsafe.StringData(second) {
		t.Error("the same name twice has two copies")
	}
	if String("") != "" {
		t.Error("the empty string is another one")
	}
}

func TestInternedStringsStayEqual(t *testing.T) {
	for i := range 10 * stringPlaces {
		if s := fmt.Sprint("pod-", i); String(s) != s {
			t.Fatalf("%s became %s", s, String(s))
		}
	}
}

func TestEqualSetsAreOne(t *testing.T) {
	set := func() map[string]string { return map[string]string{"app": "web", "tier": "front"} }
	first := Set(set())
	if second := Set(set()); reflect.ValueOf(first).UnsafePointer() != reflect.ValueOf(second).UnsafePointer() {
		t.Error("the same labels twice have two copies")
	}
	if swapped := Set(map[string]string{"app": "front", "tier": "web"}); swapped["app"] != "front" {
		t.Errorf("other labels became %v", swapped)
	}
	if Set(map[string]string{}) != nil {
		t.Error("no labels take memory")
	}
	for i := range 10 * setPlaces {
		m := map[string]string{"pod": fmt.Sprint(i)}
		if got := Set(maps.Clone(m)); !maps.Equal(got, m) {
			t.Fatalf("%v became %v", m, got)
		}
	}
}

func TestPackedStringsStayThemselves(t *testing.T) {
	a, b, c, d := "first", "", "second", "third"
	Pack(&a, &b, &c, &d)
	if a != "first" || b != "" || c != "second" || d != "third" {
		t.Errorf("got %q, %q, %q, %q", a, b, c, d)
	}
	if end := unsafe.Add(unsafe.Pointer(unsafe.StringData(a)), len(a)); end != unsafe.Pointer(unsafe.StringData(c)) {
		t.Error("they are not next to each other")
	}
}
