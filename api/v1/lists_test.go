// Copyright The Kiln Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"slices"
	"strings"
	"testing"
)

func TestListsInAnnotationsAreBounded(t *testing.T) {
	repeat := func(entry, separator string, n int) string {
		return strings.Join(slices.Repeat([]string{entry}, n), separator)
	}
	for _, tt := range []struct {
		annotation                   Annotation
		start, entry, separator, end string
	}{
		{AnnotationIPPool, "", "10.16.0.2", ",", ""},
		{AnnotationIPPool, "", "10.16.0.2,fd00::2", ";", ""},
		{AnnotationIPPool, "", "pool", ",", ""},
		{AnnotationPortVips, "", "10.16.0.2", ",", ""},
		{AnnotationIPPool, "", "203.113.113.113,2001:0db8:ffff:ffff:ffff:ffff:ffff:ffff", ";", ""},
		{AnnotationRoutes, "[", `{"dst":"192.0.2.0/24"}`, ",", "]"},
		{AnnotationRoutes, "[", `{"dst":"2001:0db8:ffff:ffff:ffff:ffff:ffff:ffff/128","gw":"2001:0db8:ffff:ffff:ffff:ffff:ffff:fffe"}`, ",", "]"},
	} {
		for _, n := range []int{MaxListEntries, MaxListEntries + 1} {
			value := tt.start + repeat(tt.entry, tt.separator, n) + tt.end
			_, err := ParsePodRequest(map[string]string{tt.annotation.Key(): value})
			if tooLong := err != nil && strings.Contains(err.Error(), "1025 entries, more than 1024: use fewer"); tooLong != (n > MaxListEntries) || err != nil != tooLong {
				t.Errorf("%d entries like %s: %.200v", n, tt.entry, err)
			}
		}
	}
	for _, a := range []Annotation{AnnotationAAPs, AnnotationGroups} {
		for _, n := range []int{MaxListEntries, MaxListEntries + 1} {
			value := repeat("a", ",", n)
			if tooLong := len(CheckRequests(OnPod, map[string]string{a.Key(): value})) > 0; tooLong != TooLong(value) {
				t.Errorf("%d entries in %s: too many is %t", n, a, tooLong)
			}
		}
	}
	key := AnnotationGroups.Key()
	if groups := ParseSecurityGroups(map[string]string{key: "a," + repeat("b", ",", MaxListEntries-1)}); !slices.Equal(groups, []string{"a", "b"}) {
		t.Errorf("a pod names %q", groups)
	}
	if groups := ParseSecurityGroups(map[string]string{key: "a," + repeat("b", ",", MaxListEntries)}); !slices.Equal(groups, []string{DenyAllGroup}) {
		t.Errorf("a pod with too many groups names %q", groups)
	}
	long := repeat(strings.Repeat("a", 200), ",", MaxListEntries)
	if groups := ParseSecurityGroups(map[string]string{key: long}); !slices.Equal(groups, []string{DenyAllGroup}) || len(CheckRequests(OnPod, map[string]string{key: long})) == 0 {
		t.Errorf("a pod with a list of %d bytes names %q", len(long), groups)
	}
}

// The value of a YAML block scalar ends with a newline. Each value that IsTrue takes as true is valid for CheckRequests.
func TestTrueMayHaveWhiteSpaceAroundIt(t *testing.T) {
	for value, want := range map[string]bool{"true": true, " true\n": true, "false": false, "yes": false, "": false} {
		annotations := map[string]string{AnnotationPortSecurity.Key(): value}
		if got := IsTrue(annotations, AnnotationPortSecurity); got != want || want && len(CheckRequests(OnPod, annotations)) > 0 {
			t.Errorf("%q: %t, want %t", value, got, want)
		}
	}
}
